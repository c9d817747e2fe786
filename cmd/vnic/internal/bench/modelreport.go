package bench

import (
	_ "embed" // the schema
	"fmt"
	"io"
	"text/tabwriter"

	"vnic.dev/vnic/internal/memavail"
)

// ModelSchema is the JSON schema of a ModelReport.
//
//go:embed model.json
var ModelSchema string

// ModelReport is the result of `vnic bench --model`, and its --json (model.json).
type ModelReport struct {
	Schema      int        `json:"schema"`
	CPUs        int        `json:"cpus"`
	Workers     int        `json:"workers"` // as many as Go uses processors
	Hogs        int        `json:"hogs"`    // beside the flow of the prediction
	Arch        string     `json:"arch"`    // "linux/amd64"
	Go          string     `json:"go"`
	CacheBytes  uint64     `json:"cache_bytes"`  // of the last-level caches; 0: not known
	MemoryBytes uint64     `json:"memory_bytes"` // that copies go through
	Runs        int        `json:"runs"`         // of each row
	RunSeconds  float64    `json:"run_seconds"`
	Rows        []ModelRow `json:"rows"`
}

// ModelRow is one case: what workers moved together.
type ModelRow struct {
	Name       string      `json:"name"`
	About      string      `json:"about"`
	Unit       string      `json:"unit"` // GBps
	Workers    int         `json:"workers"`
	Measured   Span        `json:"measured"`
	NsPerKiB   float64     `json:"ns_per_kib"` // that a worker takes for it, by the clock
	Processors float64     `json:"processors"` // that the workers had
	Prediction *Prediction `json:"prediction"` // null: the row is one that predictions are made of
}

// Span is a median, the least and the most.
type Span struct {
	Median float64 `json:"median"`
	Low    float64 `json:"low"`
	High   float64 `json:"high"`
}

// Prediction is what the model says of a row.
type Prediction struct {
	Rate         float64 `json:"rate"`          // in the row's unit
	Bound        string  `json:"bound"`         // what allows no more: the edge's name
	ErrorPercent float64 `json:"error_percent"` // of the rate, beside the measured median
}

// quiet is how much of the processors workers have where nobody else wants them.
const quiet = 0.95

// Table prints the report for people.
func (rep *ModelReport) Table(w io.Writer) error {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(tw, "measurement\tunit\tmedian\trange\tns/KiB\tprocessors\tpredicted\tbound by\terror\t")
	busy, full := false, true
	for _, r := range rep.Rows {
		predicted, bound, wrong := "-", "-", "-"
		if p := r.Prediction; p != nil {
			predicted, bound, wrong = amount(p.Rate), p.Bound, fmt.Sprintf("%+.1f %%", p.ErrorPercent)
			full = full && p.Bound == memoryEdge
		}
		fmt.Fprintf(tw, "%s\t%s\t%s\t%s - %s\t%s\t%.2f\t%s\t%s\t%s\t\n", r.About, r.Unit, amount(r.Measured.Median),
			amount(r.Measured.Low), amount(r.Measured.High), amount(r.NsPerKiB), r.Processors, predicted, bound, wrong)
		busy = busy || r.Processors < quiet*float64(min(r.Workers, rep.Workers))
	}
	if err := tw.Flush(); err != nil {
		return err
	}
	caches := "caches of unknown size"
	if rep.CacheBytes > 0 {
		caches = "caches of " + memavail.Human(rep.CacheBytes)
	}
	_, err := fmt.Fprintf(w, "\n%d processors, %s, %s; medians of %d runs in turn, %g s a run; copies through %s, %s\n",
		rep.Workers, rep.Arch, rep.Go, rep.Runs, rep.RunSeconds, memavail.Human(rep.MemoryBytes), caches)
	if err == nil && rep.CacheBytes >= rep.MemoryBytes {
		_, err = fmt.Fprintln(w, "Memory is too short to go around the caches: some copies were in them.")
	}
	if err == nil && busy {
		_, err = fmt.Fprintln(w, "Workers did not have the processors all the time: run it again on a quiet machine.")
	}
	if err == nil && !full {
		_, err = fmt.Fprintln(w, "Memory does not bound each prediction: of the others this does not say how it is shared.")
	}
	if err == nil {
		_, err = fmt.Fprintln(w, "This is the model against this machine's memory; it says nothing about PCIe.")
	}
	return err
}
