package block

import (
	"fmt"
	"io"
	"strings"

	"vnic.dev/vnic/internal/lab"
	"vnic.dev/vnic/internal/report"
	"vnic.dev/vnic/internal/session"
)

// Report is the result of `vnic block`, as --json prints it.
type Report struct {
	session.Head
	Server string `json:"server"`
	Device Device `json:"device"`
	Block  uint64 `json:"block_bytes"`
	Depth  int    `json:"depth"`
	Random bool   `json:"random"`
	Seed   uint64 `json:"seed"`
	Runs   []Run  `json:"runs"`

	session.Captured
	size uint64
}

// Device describes the device, as its server does; ReadOnly is false for an NBD device in a run without writes.
type Device struct {
	Name        string `json:"name"`
	Bytes       uint64 `json:"bytes"`
	BlockSize   uint64 `json:"block_size"`
	MaxTransfer uint64 `json:"max_transfer"`
	MaxDepth    int    `json:"max_depth"`
	ReadOnly    bool   `json:"read_only"`
}

// Run has the results of a kind of operation in a mode.
type Run struct {
	Mode string `json:"mode"` // transfer.Devmem or transfer.Copy
	What string `json:"what"` // Read, Write or ReadBack
	session.Moved
	Operations uint64   `json:"operations"`
	P50        float64  `json:"p50_us"` // of successful operations; P50, P99 and Max are the largest of all rounds
	P99        float64  `json:"p99_us"`
	Max        float64  `json:"max_us"`
	Failed     uint64   `json:"failed"`
	Errors     []string `json:"errors,omitempty"`
	Messages   uint64   `json:"messages"` // received headers (block.Stats)
	Rounds     int      `json:"rounds"`
}

// Values of Run.What.
const (
	Read     = "read"
	Write    = "write"
	ReadBack = "read back"
)

var columns = report.Columns[Run]{
	{Title: "mode", Text: func(r *Run) string { return r.Mode }},
	{Title: " ", Text: func(r *Run) string { return r.What }},
	{Title: "bytes", Count: func(r *Run) *uint64 { return &r.Bytes }},
	{Title: "IOPS", Text: func(r *Run) string { return fmt.Sprintf("%.0f", report.PerSecond(r.Operations, r.Seconds)) }},
	{Title: "MB/s", Text: func(r *Run) string { return r.Rate() }},
	{Title: "p50 us", Text: func(r *Run) string { return fmt.Sprintf("%.0f", r.P50) }},
	{Title: "p99 us", Text: func(r *Run) string { return fmt.Sprintf("%.0f", r.P99) }},
	{Title: "looked at", Text: func(r *Run) string { return session.Percent(r.LookedShare()) }},
	{Title: "guest CPU s/GB", Text: func(r *Run) string { return session.Cost(r.CPUPerGB) }},
}

var placeColumns = report.Columns[Run]{
	{Title: "mode", Text: func(r *Run) string { return r.Mode }},
	{Title: " ", Text: func(r *Run) string { return r.What }},
	{Title: "in device", Count: func(r *Run) *uint64 { return &r.RX.Device }},
	{Title: "in host", Count: func(r *Run) *uint64 { return &r.RX.Host }},
	{Title: "out device", Count: func(r *Run) *uint64 { return &r.TX.Device }},
	{Title: "out host", Count: func(r *Run) *uint64 { return &r.TX.Host }},
	{Title: "verified", Text: func(r *Run) string { return session.Verified(r.Verified, r.By, "WRONG, with "+r.By) }},
}

// Table prints the report as text.
func (r *Report) Table(w io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(&b, "%s: %s, %s in blocks of %s%s\n", r.Server, r.Device.Name, lab.ShowBytes(r.Device.Bytes),
		lab.ShowBytes(r.Device.BlockSize), map[bool]string{true: ", read-only"}[r.Device.ReadOnly])
	fmt.Fprintf(&b, "operations of %s, %d at a time%s; rates are the emulation's\n\n", lab.ShowBytes(r.Block), r.Depth,
		map[bool]string{true: ", in random order"}[r.Random])
	_ = columns.Table(&b, r.Runs)
	b.WriteByte('\n')
	_ = placeColumns.Table(&b, r.Runs)
	b.WriteString("in and out are payload of TCP as the NIC moved it: the blocks and the protocol's heads\n\n")
	for i := range r.Runs {
		x := &r.Runs[i]
		if x.Verified == nil && x.SHA256 != "" {
			fmt.Fprintf(&b, "sha256, %s, %s: %s\n", x.Mode, x.What, x.SHA256)
		}
		for _, e := range x.Errors {
			fmt.Fprintf(&b, "%s, %s: %s\n", x.Mode, x.What, e)
		}
	}
	return r.End(w, &b, &r.Info, r.NIC, r.Seed)
}
