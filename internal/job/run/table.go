package run

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"

	"vnic.dev/vnic/internal/lab"
	"vnic.dev/vnic/internal/report"
	"vnic.dev/vnic/internal/transfer"
)

// columns returns the lines of the table that has a column for each mode. Report.add sums up the counts of lines that
// report.Sum makes.
func (rep *Report) columns() report.Columns[Run] {
	sends, receives := rep.sides()
	only := func(there bool, c report.Column[Run]) report.Column[Run] {
		c.If = func([]Run) bool { return there }
		return c
	}
	cpu := func(r *Run) *CPU { return r.GuestCPU }
	hold := func(r *Run) *Hold { return r.Hold }
	late := func(r *Run) *LateTokens { return r.LateTokens }
	audit := func(r *Run) *AuditCount { return r.Audit }
	perGB := func(title string, seconds func(*CPU) float64) report.Column[Run] {
		c := report.Optional(title, cpu, nil)
		c.Text = func(r *Run) string { return fmt.Sprintf("%.2f", seconds(r.GuestCPU)/(float64(r.Bytes)/1e9)) }
		return c
	}
	return report.Columns[Run]{
		{Title: "mode", Text: func(r *Run) string { return r.Mode }},
		{Title: "digest", Text: func(r *Run) string { return match(r.SHA256Match) }},
		report.Sum("bytes", func(r *Run) *uint64 { return &r.Bytes }),
		{Title: "seconds", Text: func(r *Run) string { return fmt.Sprintf("%.2f", r.Seconds) }},
		{Title: "rate MB/s", Text: rate},
		only(sends, report.Sum("sent from device memory", func(r *Run) *uint64 { return &r.TX.Device })),
		only(sends, report.Sum("sent from host memory", func(r *Run) *uint64 { return &r.TX.Host })),
		only(receives, report.Sum("received in device memory", func(r *Run) *uint64 { return &r.RX.Device })),
		only(receives, report.Sum("received in host memory", func(r *Run) *uint64 { return &r.RX.Host })),
		report.Sum("header bytes", func(r *Run) *uint64 { return &r.HeaderBytes }),
		{Title: "copy engine bytes", Count: func(r *Run) *uint64 { return &r.CopyEngineBytes }},
		report.Sum("retransmitted bytes", func(r *Run) *uint64 { return &r.RetransmittedBytes }),
		{Title: "dropped packets", Count: func(r *Run) *uint64 { return &r.DroppedPackets }},
		perGB("guest CPU s/GB, user", func(c *CPU) float64 { return c.User }),
		perGB("system", func(c *CPU) float64 { return c.System }),
		perGB("irq", func(c *CPU) float64 { return c.IRQ }),
		report.Optional("tokens held", hold, func(h *Hold) string { return report.Number(h.Tokens) }),
		report.Optional("until it stalled, times", hold, func(h *Hold) string { return report.Number(h.Stalls) }),
		report.Optional("tokens late", late, func(l *LateTokens) string { return report.Number(l.Tokens) }),
		report.Optional("no buffer for, times", late, func(l *LateTokens) string { return report.Number(l.NoBuffer) }),
		report.Optional("audit: payload found in RAM of A", audit,
			func(a *AuditCount) string { return fmt.Sprint(a.HitsSender) }),
		report.Optional("in RAM of B", audit, func(a *AuditCount) string { return fmt.Sprint(a.HitsReceiver) }),

		// These counts are summed, and shown in no table.
		report.Sum("", func(r *Run) *uint64 { return &r.PayloadBytesDevice }),
		report.Sum("", func(r *Run) *uint64 { return &r.PayloadBytesHost }),
		report.Sum("", func(r *Run) *uint64 { return &r.LinearBytes }),
		report.Sum("", func(r *Run) *uint64 { return &r.Fragments }),
		report.Sum("", func(r *Run) *uint64 { return &r.BouncedBytes }),
	}
}

func rate(r *Run) string { return fmt.Sprintf("%.1f", r.Rate()/1e6) }

func match(ok bool) string {
	if ok {
		return "match"
	}
	return "MISMATCH"
}

// railColumns are the columns of the rails' table.
var railColumns = report.Columns[Rail]{
	{Title: "rail", Text: func(r *Rail) string { return fmt.Sprint(r.Rail) }},
	{Title: "from", Text: func(r *Rail) string { return r.From }},
	{Title: " ", Text: func(r *Rail) string { return r.FromGPU }},
	{Title: "to", Text: func(r *Rail) string { return r.To }},
	{Title: " ", Text: func(r *Rail) string { return r.ToGPU }},
	{Title: "path", Text: func(r *Rail) string {
		if !r.P2P {
			return r.Path + ", bounced"
		}
		return r.Path
	}},
	{Title: "MB/s", Text: func(r *Rail) string { return rate(&r.Run) }},
	{Title: "of rate", Text: func(r *Rail) string { return percent(r.Share.OfRate) }, If: share},
	{Title: "of possible", Text: func(r *Rail) string { return percent(r.Share.OfPossible) }, If: share},
	{Title: "limit", Text: func(r *Rail) string { return cmp.Or(r.Share.Limit, "-") }, If: share},
	{Title: "device bytes", Text: func(r *Rail) string { return report.Number(r.TX.Device + r.RX.Device) }},
	{Title: "host bytes", Text: func(r *Rail) string { return report.Number(r.TX.Host + r.RX.Host) }},
	{Title: "retransmitted", Count: func(r *Rail) *uint64 { return &r.RetransmittedBytes }},
	{Title: "digest", Text: func(r *Rail) string { return match(r.SHA256Match) }},
}

// share reports whether the run measured shares: there was a probe.
func share(rails []Rail) bool { return rails[0].Share != nil && rails[0].Share.Probe > 0 }

// Table prints the report: for each mode, if there are rails, a table of rails and one of links, then a table with a
// column for each mode, and lines about the run. Its error is w's.
func (rep *Report) Table(w io.Writer) error {
	var b strings.Builder
	for i := range rep.Runs {
		rep.railTable(&b, rep.Runs[i].Mode)
	}
	rep.table(&b)
	_, err := io.WriteString(w, b.String())
	return err
}

// railTable prints a mode's table with a line for each direction of a rail that has a result, and below it fairness,
// shares and links. If the report has no Rails, it prints nothing.
func (rep *Report) railTable(w io.Writer, mode string) {
	if len(rep.Rails) == 0 {
		return
	}
	rails := slices.DeleteFunc(slices.Clone(rep.Rails), func(r Rail) bool { return r.Mode != mode })
	if len(rails) == 0 { // a script may have removed their NICs
		fmt.Fprintf(w, "%s: no rail was measured\n", mode)
		return
	}
	fmt.Fprintln(w, mode)
	_ = railColumns.Table(w, rails)
	fmt.Fprintf(w, "Jain's fairness %.3f\n", rep.Fairness(mode))
	rep.shareLines(w, mode)
	rep.linkTable(w, mode)
}

func percent(f *float64) string {
	if f == nil {
		return "-"
	}
	return fmt.Sprintf("%.1f %%", *f*100)
}

// shareLines prints, of a mode's rails with a Share: if there was a probe, the scale, and why rails have no OfRate;
// then the model's prediction for the rail with the least modelShare, unless that rail has no line rate.
func (rep *Report) shareLines(w io.Writer, mode string) {
	var shared []*Rail
	for i := range rep.Rails {
		if r := &rep.Rails[i]; r.Mode == mode && r.Share != nil {
			shared = append(shared, r)
		}
	}
	if len(shared) == 0 {
		return
	}
	if shared[0].Share.Probe > 0 {
		fmt.Fprintf(w, "links are %s times slower than the lab file says; timers of the guests, as of TCP, are not\n",
			report.Number(uint64(rep.Scale)))
		for _, r := range shared {
			if r.Share.OfRate == nil {
				fmt.Fprintf(w, "%s to %s: no share: %s\n", r.From, r.To, r.Share.Why)
			}
		}
	}
	least := slices.MinFunc(shared, func(a, b *Rail) int {
		return cmp.Compare(a.Share.modelShare(), b.Share.modelShare())
	}).Share
	if least.LineRate == 0 {
		return
	}
	fmt.Fprintf(w, "model, not measured: %.1f %% of line rate, %.1f %% of the possible, limited by %s; assumed are PCIe "+
		"writes of 256 bytes and reads of 512, switches and host bridges that slow nothing down, and memories as fast as "+
		"the file says\n",
		least.modelShare()*100, least.Model/least.Possible*100, least.ModelLimit)
}

// mostLinks is how many links linkTable shows at most.
const mostLinks = 8

var linkColumns = report.Columns[Link]{
	{Title: "link", Text: func(l *Link) string { return l.Name }},
	{Title: "rate", Text: func(l *Link) string {
		if l.Rate == 0 {
			return "not said"
		}
		return lab.FormatEdgeRate(l.Name, l.Rate)
	}},
	{Title: "payload", Count: func(l *Link) *uint64 { return &l.Payload }},
	{Title: "with headers and rings", Count: func(l *Link) *uint64 { return &l.Bytes }},
	{Title: "load at line rate", Text: func(l *Link) string {
		if l.Rate == 0 || l.Load == 0 {
			return "-"
		}
		return percent(&l.Load)
	}},
}

// linkTable prints a mode's most loaded links, if there are any, and its StackCopies.
func (rep *Report) linkTable(w io.Writer, mode string) {
	run := &rep.Runs[slices.IndexFunc(rep.Runs, func(r Run) bool { return r.Mode == mode })]
	if links := run.Links; len(links) > 0 {
		fmt.Fprintln(w)
		_ = linkColumns.Most(w, links, mostLinks, len(links))
	}
	run.stackLines(w)
	fmt.Fprintln(w)
}

// modelShare returns the predicted rate, as a part of the line rate; 0: the NICs have no rate.
func (x *Share) modelShare() float64 {
	if x.LineRate == 0 {
		return 0
	}
	return x.Model / x.LineRate
}

// sides reports whether a guest on this host sends, and whether one receives, in a transfer of the report.
func (rep *Report) sides() (sends, receives bool) {
	if rep.Half == nil {
		return true, true
	}
	for i := range rep.Rails {
		from, _, _ := strings.Cut(rep.Rails[i].From, ".")
		sends, receives = sends || from == rep.Half.Guest, receives || from != rep.Half.Guest
	}
	return sends, receives
}

func (rep *Report) table(w io.Writer) {
	_ = rep.columns().Sheet(w, rep.Runs)
	fmt.Fprintln(w)
	if rep.Ratio != nil {
		fmt.Fprintf(w, "%s / %s: %.2f, the emulation's ratio: no performance claim", transfer.Devmem, transfer.Copy,
			*rep.Ratio)
		if rep.Accel == "tcg" {
			fmt.Fprint(w, " (guest code is emulated: TCG)")
		}
		fmt.Fprintln(w)
	}
	fmt.Fprintf(w, "guests: %s", rep.Guest)
	if rep.Guest == "qemu" {
		fmt.Fprintf(w, " %s (%s), kernel %s, booted in %.1f s", rep.QEMU, rep.Accel, rep.Kernel, rep.BootSeconds)
	}
	fmt.Fprintf(w, "; NIC: %s; seed %d\n", rep.NIC, rep.Seed)
	if h := rep.Half; h != nil && h.PeerProved != nil {
		says := "proved"
		if !*h.PeerProved {
			says = "NOT PROVED: " + h.PeerSays
		}
		fmt.Fprintf(w, "this is the half of guest %s; the host of guest %s says of its own: %s\n", h.Guest, h.Peer,
			says)
	}
	if rep.Pcap != nil {
		fmt.Fprintln(w, rep.Pcap)
	}
}
