package allreduce

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/dustin/go-humanize/english"

	"vnic.dev/vnic/internal/report"
	"vnic.dev/vnic/internal/transfer"
)

// Table prints the rows of the report in the columns of nccl-tests, and other lines, which begin with #.
func (r *Report) Table(w io.Writer) error {
	var b strings.Builder
	for i := range r.Modes {
		r.table(&b, &r.Modes[i])
	}
	if len(r.Modes) == 2 {
		a, c := &r.Modes[0], &r.Modes[1]
		if a.CPUPerGB != nil && c.CPUPerGB != nil {
			fmt.Fprintf(&b, "# guest CPU s/GB, %s / %s: %.2f / %.2f\n", a.Mode, c.Mode, *a.CPUPerGB, *c.CPUPerGB)
		}
		if c.Bus > 0 {
			fmt.Fprintf(&b, "# %s / %s: %.2f, the emulation's ratio: no performance claim\n", a.Mode, c.Mode, a.Bus/c.Bus)
		}
	}
	if r.Pcap != nil {
		fmt.Fprintf(&b, "# %v\n", r.Pcap)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func (r *Report) table(b *strings.Builder, m *Mode) {
	if len(m.Rows) == 0 {
		return
	}
	fmt.Fprintf(b, "# vnic %s: mode %s, %d ranks, minBytes %d maxBytes %d warmup iters: %d iters: %d validation: %d\n",
		r.Op, m.Mode, r.Ranks, m.Rows[0].Bytes, m.Rows[len(m.Rows)-1].Bytes, r.Warmup, r.Iters, checked(m))
	fmt.Fprintf(b, "# guests: %v; %s; seed %d; rates are the emulation's\n#\n# Using devices\n", &r.Info,
		english.Plural(r.Channels, "channel", ""), r.Seed)
	for _, x := range m.Ranks {
		p2p := ""
		if !x.P2P {
			p2p = ", no peer-to-peer: payload is bounced"
		}
		fmt.Fprintf(b, "#  Rank %2d on %10s device %2d [%s%s]\n", x.Rank, x.Guest, 0, x.NIC, p2p)
	}
	b.WriteString("#\n#                                                              out-of-place" +
		"                       in-place          \n" +
		"#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw" +
		" #wrong\n" +
		"#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)" +
		"       \n")
	redop := "sum"
	if r.Op == transfer.AllGather || r.Op == transfer.Broadcast {
		redop = "none"
	}
	for _, x := range m.Rows {
		fmt.Fprintf(b, "%12d  %12d  %8s  %6s  %6d  %s  %s\n", x.Bytes, x.Count, r.Type, redop, r.Root, x.OutOfPlace.text(),
			x.InPlace.text())
	}
	m.payload(b)
	verdict := "OK"
	if m.Wrong > 0 {
		verdict = "FAILED"
	}
	fmt.Fprintf(b, "# Out of bounds values : %d %s\n# Avg bus bandwidth    : %.6g\n#\n", m.Wrong, verdict, m.Bus)
}

// checked returns nccl-tests' "validation": 1 if results were compared, else 0.
func checked(m *Mode) int {
	if m.Rows[0].InPlace.Wrong == nil {
		return 0
	}
	return 1
}

// text returns the columns of a half; long times have fewer decimals, as in nccl-tests.
func (h *Half) text() string {
	us := fmt.Sprintf("%7.2f", h.Microseconds)
	switch {
	case h.Microseconds >= 99999.5:
		us = fmt.Sprintf("%7.0f", h.Microseconds)
	case h.Microseconds >= 9999.5:
		us = fmt.Sprintf("%7.1f", h.Microseconds)
	}
	wrong := "N/A"
	if h.Wrong != nil {
		wrong = fmt.Sprint(*h.Wrong)
	}
	return fmt.Sprintf("%s  %6.2f  %6.2f  %5s", us, h.Alg, h.Bus, wrong)
}

var payloadColumns = report.Columns[Rank]{
	{Title: "rank", Text: func(x *Rank) string { return fmt.Sprint(x.Rank) }},
	{Title: "out: device", Count: func(x *Rank) *uint64 { return &x.Out.Device }},
	{Title: "host", Count: func(x *Rank) *uint64 { return &x.Out.Host }},
	{Title: "in: device", Count: func(x *Rank) *uint64 { return &x.In.Device }},
	{Title: "host", Count: func(x *Rank) *uint64 { return &x.In.Host }},
	{Title: "sent again", Count: func(x *Rank) *uint64 { return &x.Out.Retransmitted }},
	{Title: "expected", Count: func(x *Rank) *uint64 { return &x.Expected.Out }},
	{Title: "bounced", Text: func(x *Rank) string { return report.Number(x.Out.Bounced + x.In.Bounced) }},
}

// payload prints in which memory the payload of each rank lay, the processor time if it is known, and the first
// rank with wrong counters, if there is one.
func (m *Mode) payload(b *strings.Builder) {
	var t strings.Builder
	_ = payloadColumns.Table(&t, m.Ranks)
	b.WriteString("#\n# payload by the NICs' meters, in bytes, all operations together\n")
	for line := range strings.Lines(t.String()) {
		b.WriteString("#   " + line)
	}
	if m.CPUPerGB != nil {
		fmt.Fprintf(b, "# guest CPU s/GB: %.2f (all guests, for each GB that a rank passes on)\n", *m.CPUPerGB)
	}
	if i := slices.IndexFunc(m.Ranks, func(x Rank) bool { return x.wrongCount(m.Mode) != "" }); i >= 0 {
		fmt.Fprintf(b, "# rank %d: %s\n", i, m.Ranks[i].wrongCount(m.Mode))
	}
}
