package load

import (
	"fmt"
	"io"
	"strings"
	"time"

	"vnic.dev/vnic/internal/lab"
	"vnic.dev/vnic/internal/report"
	"vnic.dev/vnic/internal/session"
)

// Report is the result of `vnic load`, as --json prints it.
type Report struct {
	session.Head
	URL         string   `json:"url"` // after redirects
	Size        uint64   `json:"size"`
	ETag        string   `json:"etag"`
	Format      string   `json:"format"`
	Connections int      `json:"connections"`
	Range       uint64   `json:"range_bytes"`
	Tensors     []Tensor `json:"tensors,omitempty"` // the first tensors of the file; TensorCount counts all
	TensorCount int      `json:"tensor_count,omitempty"`
	Seed        uint64   `json:"seed"`
	Runs        []Run    `json:"runs"`

	session.Captured
}

// Tensor describes a tensor of a safetensors file and where it lies.
type Tensor struct {
	Name  string   `json:"name"`
	Type  string   `json:"dtype"`
	Shape []uint64 `json:"shape"`
	Off   uint64   `json:"gpu_offset"` // in the guest's part of its GPU's memory
	Bytes uint64   `json:"bytes"`
}

// Run has the results of a mode.
type Run struct {
	Mode string `json:"mode"`
	session.Moved
	// Records, Waited and First describe the consumer of records, and are 0 with other formats.
	Records uint64  `json:"records,omitempty"`
	Waited  float64 `json:"waited_share"` // part of the consumer's time in which it waited for data
	First   float64 `json:"first_seconds,omitempty"`

	Requests    uint64 `json:"requests"`
	Connections uint64 `json:"connections"`
	Resumed     uint64 `json:"resumed"`
	Error       string `json:"error,omitempty"`
}

// mostTensors bounds the tensors of the table.
const mostTensors = 12

var tensorColumns = report.Columns[Tensor]{
	{Title: "tensor", Text: func(t *Tensor) string { return t.Name }},
	{Title: "dtype", Text: func(t *Tensor) string { return t.Type }},
	{Title: "shape", Text: func(t *Tensor) string { return strings.ReplaceAll(fmt.Sprint(t.Shape), " ", ", ") }},
	{Title: "at", Text: func(t *Tensor) string { return fmt.Sprintf("%#x", t.Off) }},
	{Title: "bytes", Count: func(t *Tensor) *uint64 { return &t.Bytes }},
}

var columns = report.Columns[Run]{
	{Title: "mode", Text: func(r *Run) string { return r.Mode }},
	{Title: "bytes", Count: func(r *Run) *uint64 { return &r.Bytes }},
	{Title: "MB/s", Text: func(r *Run) string { return r.Rate() }},
	{Title: "samples/s", If: ofRecords,
		Text: func(r *Run) string { return fmt.Sprintf("%.1f", report.PerSecond(r.Records, r.Seconds)) }},
	{Title: "waited for data", Text: func(r *Run) string { return session.Percent(r.Waited) }, If: ofRecords},
	{Title: "requests", Text: func(r *Run) string { return fmt.Sprint(r.Requests) }},
	{Title: "connections", Text: func(r *Run) string { return fmt.Sprint(r.Connections) }},
	{Title: "resumed", Text: func(r *Run) string { return fmt.Sprint(r.Resumed) }},
	{Title: "guest CPU s/GB", Text: func(r *Run) string { return session.Cost(r.CPUPerGB) }},
}

func ofRecords(runs []Run) bool { return len(runs) > 0 && runs[0].Records > 0 }

var placeColumns = report.Columns[Run]{
	{Title: "mode", Text: func(r *Run) string { return r.Mode }},
	{Title: "in device", Count: func(r *Run) *uint64 { return &r.RX.Device }},
	{Title: "in host", Count: func(r *Run) *uint64 { return &r.RX.Host }},
	{Title: "looked at", Text: func(r *Run) string { return session.Percent(r.LookedShare()) }},
	{Title: "verified", Text: func(r *Run) string { return session.Verified(r.Verified, r.By, "WRONG: "+r.Error) }},
}

// Table prints the report as text.
func (r *Report) Table(w io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(&b, "%s: %s\n%d connections, requests of %s; rates are the emulation's\n\n", r.URL,
		lab.ShowBytes(r.Size), r.Connections, lab.ShowBytes(r.Range))
	if len(r.Tensors) > 0 {
		_ = tensorColumns.Most(&b, r.Tensors, mostTensors, r.TensorCount)
		b.WriteByte('\n')
	}
	_ = columns.Table(&b, r.Runs)
	b.WriteByte('\n')
	_ = placeColumns.Table(&b, r.Runs)
	b.WriteString("in device and in host are payload of TCP as the NIC wrote it: the file and the heads of responses\n\n")
	for _, x := range r.Runs {
		if ofRecords(r.Runs) {
			fmt.Fprintf(&b, "%s: the first batch was there after %v\n", x.Mode,
				time.Duration(x.First*float64(time.Second)).Round(time.Microsecond))
		}
		if x.SHA256 != "" {
			fmt.Fprintf(&b, "sha256, %s: %s\n", x.Mode, x.SHA256)
		}
	}
	return r.End(w, &b, &r.Info, r.NIC, r.Seed)
}
