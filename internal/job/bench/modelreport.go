package bench

import (
	_ "embed" // for ModelSchema
	"fmt"
	"io"
	"strings"

	"vnic.dev/vnic/internal/memavail"
	"vnic.dev/vnic/internal/report"
)

// ModelSchema is the JSON schema of a ModelReport.
//
//go:embed model.json
var ModelSchema string

// ModelReport is the result of `vnic bench --model`, and its --json (model.json).
type ModelReport struct {
	Schema      int        `json:"schema" jsonschema:"enum=1"`
	CPUs        int        `json:"cpus" jsonschema:"minimum=1"`
	Workers     int        `json:"workers" jsonschema:"minimum=1"` // the number of processors that Go uses
	Hogs        int        `json:"hogs" jsonschema:"minimum=1"`    // workers that copy beside the predicted flow
	Arch        string     `json:"arch"`                           // "linux/amd64"
	Go          string     `json:"go"`                             // version of Go that built vnic
	CacheBytes  uint64     `json:"cache_bytes"`                    // size of the last-level caches; 0: unknown
	MemoryBytes uint64     `json:"memory_bytes"`                   // least size of the memory that copies go through
	Runs        int        `json:"runs" jsonschema:"minimum=1"`    // number of runs of each row; the rows' runs alternate
	RunSeconds  float64    `json:"run_seconds"`                    // least time of a run
	Rows        []ModelRow `json:"rows"`                           // with one processor without copy-all and nic-all
}

// ModelRow is the throughput of the flows of a case together, or of its workers that copy.
type ModelRow struct {
	Name     string  `json:"name"`
	About    string  `json:"about"`                       // what is measured
	Unit     string  `json:"unit" jsonschema:"enum=GB/s"` // 10^9 bytes of payload a second
	Workers  int     `json:"workers" jsonschema:"minimum=1"`
	Measured Span    `json:"measured"`   // in unit, of all workers together
	NsPerKiB float64 `json:"ns_per_kib"` // the time that a worker takes for a KiB, by the clock
	// processors that the workers had; fewer than workers: other programs, or with one processor the
	// other worker, used some
	Processors float64     `json:"processors"`
	Prediction *Prediction `json:"prediction" jsonschema:"nullable"` // null: predictions are made from this row
}

// Span is a median, with the least and the largest value.
type Span struct {
	Median float64 `json:"median"`
	Low    float64 `json:"low"`  // of all runs
	High   float64 `json:"high"` // of all runs
}

// Prediction is the model's prediction for a row.
type Prediction struct {
	Rate float64 `json:"rate"` // in unit
	// the edge that limits the rate in the model
	Bound        string  `json:"bound" jsonschema:"enum=memory,enum=one flow,enum=one worker,enum=processors"`
	ErrorPercent float64 `json:"error_percent"` // error of the rate, compared with the measured median
}

// quiet is the least part of the processors that a row's workers have on a quiet machine. The whole is one processor
// for each worker, but at most ModelReport.Workers.
const quiet = 0.95

var modelColumns = report.Columns[ModelRow]{
	{Title: "measurement", Text: func(r *ModelRow) string { return r.About }},
	{Title: "unit", Text: func(r *ModelRow) string { return r.Unit }},
	{Title: "median", Text: func(r *ModelRow) string { return amount(r.Measured.Median) }},
	{Title: "range", Text: func(r *ModelRow) string { return amount(r.Measured.Low) + " - " + amount(r.Measured.High) }},
	{Title: "ns/KiB", Text: func(r *ModelRow) string { return amount(r.NsPerKiB) }},
	{Title: "processors", Text: func(r *ModelRow) string { return fmt.Sprintf("%.2f", r.Processors) }},
	{Title: "predicted", Text: optional(prediction, func(p *Prediction) string { return amount(p.Rate) })},
	{Title: "bound by", Text: optional(prediction, func(p *Prediction) string { return p.Bound })},
	{Title: "error", Text: optional(prediction, func(p *Prediction) string {
		return fmt.Sprintf("%+.1f %%", p.ErrorPercent)
	})},
}

func prediction(r *ModelRow) *Prediction { return r.Prediction }

// Table prints the report as text.
func (rep *ModelReport) Table(w io.Writer) error {
	var b strings.Builder
	_ = modelColumns.Right(&b, rep.Rows, nil)
	busy, full := false, true
	for _, r := range rep.Rows {
		full = full && (r.Prediction == nil || r.Prediction.Bound == memoryEdge)
		busy = busy || r.Processors < quiet*float64(min(r.Workers, rep.Workers))
	}
	caches := "caches of unknown size"
	if rep.CacheBytes > 0 {
		caches = "caches of " + memavail.Human(rep.CacheBytes)
	}
	fmt.Fprintf(&b, "\n%d processors, %s, %s; medians of %d runs in turn, %g s a run; copies through %s, %s\n",
		rep.Workers, rep.Arch, rep.Go, rep.Runs, rep.RunSeconds, memavail.Human(rep.MemoryBytes), caches)
	if rep.CacheBytes >= rep.MemoryBytes {
		fmt.Fprintln(&b, "Memory is too short to go around the caches: some copies were in them.")
	}
	if busy {
		fmt.Fprintln(&b, "Workers did not have the processors all the time: run it again on a quiet machine.")
	}
	if !full {
		fmt.Fprintln(&b, "Memory does not bound each prediction: of the others this does not say how it is shared.")
	}
	fmt.Fprintln(&b, "This is the model against this machine's memory; it says nothing about PCIe.")
	_, err := io.WriteString(w, b.String())
	return err
}
