package load

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/dustin/go-humanize"

	"vnic.dev/vnic/cmd/vnic/internal/guests"
	"vnic.dev/vnic/internal/lab"
)

// Report is the result of `vnic load`, and its --json.
type Report struct {
	Schema int `json:"schema"` // 1
	guests.Info
	NIC         string   `json:"nic"`
	P2P         bool     `json:"p2p"`
	URL         string   `json:"url"` // behind redirects
	Size        uint64   `json:"size"`
	ETag        string   `json:"etag"`
	Format      string   `json:"format"`
	Connections int      `json:"connections"`
	Range       uint64   `json:"range_bytes"`
	Tensors     []Tensor `json:"tensors,omitempty"`      // the first ones
	TensorCount int      `json:"tensor_count,omitempty"` // all of them
	Seed        uint64   `json:"seed"`
	Runs        []Run    `json:"runs"`

	guests.Captured
}

// Tensor is one of a safetensors file.
type Tensor struct {
	Name  string   `json:"name"`
	Type  string   `json:"dtype"`
	Shape []uint64 `json:"shape"`
	Off   uint64   `json:"gpu_offset"` // where it is in what the guest has of its GPU's memory
	Bytes uint64   `json:"bytes"`
}

// Run is what was loaded in a mode.
type Run struct {
	Mode    string  `json:"mode"` // transfer.Devmem or transfer.Copy
	Bytes   uint64  `json:"bytes"`
	Seconds float64 `json:"seconds"`
	// of a consumer of records
	Records uint64  `json:"records,omitempty"`
	Waited  float64 `json:"waited_share"` // of its time, for data
	First   float64 `json:"first_seconds,omitempty"`

	Looked      uint64 `json:"looked_bytes"`
	HostCame    uint64 `json:"host_bytes"` // came in host memory, as the guest says
	Requests    uint64 `json:"requests"`
	Connections uint64 `json:"connections"`
	Resumed     uint64 `json:"resumed"`
	guests.Traffic
	Retransmits uint64 `json:"retransmitted_segments"`
	// Verified says that every byte was compared, and was right; null: nobody knows what should be there.
	Verified *bool  `json:"verified"`
	By       string `json:"verified_by,omitempty"`
	Error    string `json:"error,omitempty"`
	SHA256   string `json:"sha256,omitempty"` // of what landed, rounds one after the other
	// CPU seconds of the guest for each 10^9 bytes; null: the guest shares this process
	CPUPerGB *float64 `json:"guest_cpu_seconds_per_gb"`
}

// share is the part of payload that was looked at.
func (r *Run) share() float64 {
	if r.Bytes == 0 {
		return 0
	}
	return float64(r.Looked) / float64(r.Bytes)
}

// mostTensors are shown to people.
const mostTensors = 12

// Table prints the report for people.
func (r *Report) Table(w io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(&b, "%s: %s\n%d connections, requests of %s; rates are the emulation's\n\n", r.URL,
		lab.ShowBytes(r.Size), r.Connections, lab.ShowBytes(r.Range))
	tw := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	n := func(v uint64) string { return humanize.Comma(int64(v)) }
	if len(r.Tensors) > 0 {
		fmt.Fprintln(tw, "tensor\tdtype\tshape\tat\tbytes")
		for _, t := range r.Tensors[:min(len(r.Tensors), mostTensors)] {
			fmt.Fprintf(tw, "%s\t%s\t%s\t%#x\t%s\n", t.Name, t.Type, strings.ReplaceAll(fmt.Sprint(t.Shape), " ", ", "), t.Off,
				n(t.Bytes))
		}
		if more := r.TensorCount - min(len(r.Tensors), mostTensors); more > 0 {
			fmt.Fprintf(tw, "and %d more: --json\n", more)
		}
		_ = tw.Flush() // a strings.Builder takes all
		b.WriteByte('\n')
	}
	records := len(r.Runs) > 0 && r.Runs[0].Records > 0
	fmt.Fprint(tw, "mode\tbytes\tMB/s\t")
	if records {
		fmt.Fprint(tw, "samples/s\twaited for data\t")
	}
	fmt.Fprintln(tw, "requests\tconnections\tresumed\tguest CPU s/GB")
	for i := range r.Runs {
		x := &r.Runs[i]
		per := func(v uint64) float64 {
			if x.Seconds == 0 {
				return 0
			}
			return float64(v) / x.Seconds
		}
		fmt.Fprintf(tw, "%s\t%s\t%.1f\t", x.Mode, n(x.Bytes), per(x.Bytes)/1e6)
		if records {
			fmt.Fprintf(tw, "%.1f\t%s\t", per(x.Records), guests.Percent(x.Waited))
		}
		fmt.Fprintf(tw, "%d\t%d\t%d\t%s\n", x.Requests, x.Connections, x.Resumed, guests.Cost(x.CPUPerGB))
	}
	_ = tw.Flush()
	fmt.Fprintln(tw, "\nmode\tin device\tin host\tlooked at\tverified")
	for i := range r.Runs {
		x := &r.Runs[i]
		verified := "-"
		switch {
		case x.Verified != nil && *x.Verified:
			verified = "every byte, with " + x.By
		case x.Verified != nil:
			verified = "WRONG: " + x.Error
		}
		fmt.Fprintf(tw, "%s\t%s\t%s\t%s\t%s\n", x.Mode, n(x.RX.Device), n(x.RX.Host), guests.Percent(x.share()),
			verified)
	}
	_ = tw.Flush()
	b.WriteString("in device and in host are payload of TCP as the NIC wrote it: the file and the heads of responses\n")
	b.WriteByte('\n')
	for i := range r.Runs {
		x := &r.Runs[i]
		if records {
			fmt.Fprintf(&b, "%s: the first batch was there after %v\n", x.Mode,
				time.Duration(x.First*float64(time.Second)).Round(time.Microsecond))
		}
		if x.SHA256 != "" {
			fmt.Fprintf(&b, "sha256, %s: %s\n", x.Mode, x.SHA256)
		}
	}
	fmt.Fprintf(&b, "guests: %v; NIC: %s; seed %d\n", &r.Info, r.NIC, r.Seed)
	if r.Pcap != nil {
		fmt.Fprintln(&b, r.Pcap)
	}
	_, err := io.WriteString(w, b.String())
	return err
}
