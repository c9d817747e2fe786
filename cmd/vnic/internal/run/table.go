package run

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/dustin/go-humanize"
	"vnic.dev/vnic/internal/lab"
	"vnic.dev/vnic/internal/transfer"
)

// Table prints the report for people: one column a mode, and of rails a line each before.
func (rep *Report) Table(w io.Writer) error {
	for i := range rep.Runs {
		if err := rep.railTable(w, rep.Runs[i].Mode); err != nil {
			return err
		}
	}
	return rep.table(w)
}

// railTable is a line for each rail's direction in a mode.
func (rep *Report) railTable(w io.Writer, mode string) error {
	if len(rep.Rails) == 0 {
		return nil
	}
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	shares := rep.Rails[0].Share != nil && rep.Rails[0].Share.Probe > 0
	fmt.Fprintf(tw, "%s\nrail\tfrom\t\tto\t\tpath\tMB/s\t", mode)
	if shares {
		fmt.Fprintf(tw, "of rate\tof possible\tlimit\t")
	}
	fmt.Fprintf(tw, "device bytes\thost bytes\tretransmitted\tdigest\n")
	for i := range rep.Rails {
		r := &rep.Rails[i]
		if r.Mode != mode {
			continue
		}
		path, digest := r.Path, "match"
		if !r.P2P {
			path += ", bounced"
		}
		if !r.SHA256Match {
			digest = "MISMATCH"
		}
		fmt.Fprintf(tw, "%d\t%s\t%s\t%s\t%s\t%s\t%.1f\t", r.Rail, r.From, r.FromGPU, r.To, r.ToGPU, path, r.Rate()/1e6)
		if shares {
			fmt.Fprintf(tw, "%s\t%s\t%s\t", percent(r.Share.OfRate), percent(r.Share.OfPossible), cmp.Or(r.Share.Limit, "-"))
		}
		fmt.Fprintf(tw, "%s\t%s\t%s\t%s\n", group(r.TX.Device+r.RX.Device), group(r.TX.Host+r.RX.Host),
			group(r.RetransmittedBytes), digest)
	}
	if err := tw.Flush(); err != nil {
		return err
	}
	fmt.Fprintf(w, "Jain's fairness %.3f\n", rep.Fairness(mode))
	rep.shareLines(w, mode)
	return rep.linkTable(w, mode)
}

// percent writes a share; "-": there is none.
func percent(f *float64) string {
	if f == nil {
		return "-"
	}
	return fmt.Sprintf("%.1f %%", *f*100)
}

// shareLines says what is behind shares, and what the model says of line rate.
func (rep *Report) shareLines(w io.Writer, mode string) {
	var of []*Rail
	for i := range rep.Rails {
		if r := &rep.Rails[i]; r.Mode == mode && r.Share != nil {
			of = append(of, r)
		}
	}
	if len(of) == 0 {
		return
	}
	if of[0].Share.Probe > 0 {
		fmt.Fprintf(w, "links are %s times slower than the lab file says; timers of the guests, as of TCP, are not\n",
			group(uint64(rep.Scale)))
		for _, r := range of {
			if r.Share.OfRate == nil {
				fmt.Fprintf(w, "%s to %s: no share: %s\n", r.From, r.To, r.Share.Why)
			}
		}
	}
	least := slices.MinFunc(of, func(a, b *Rail) int {
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

// mostLinks are shown to people: the most loaded ones.
const mostLinks = 8

// linkTable says what links carried in a mode.
func (rep *Report) linkTable(w io.Writer, mode string) error {
	i := slices.IndexFunc(rep.Runs, func(r Run) bool { return r.Mode == mode })
	links := rep.Runs[i].Links
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	if len(links) > 0 {
		fmt.Fprint(tw, "\nlink\trate\tpayload\twith headers and rings\tload at line rate\n")
	}
	for _, l := range links[:min(len(links), mostLinks)] {
		rate, load := "not said", "-"
		if l.Rate > 0 {
			rate, load = lab.FormatEdgeRate(l.Name, l.Rate), percent(&l.Load)
		}
		if l.Load == 0 {
			load = "-"
		}
		fmt.Fprintf(tw, "%s\t%s\t%s\t%s\t%s\n", l.Name, rate, group(l.Payload), group(l.Bytes), load)
	}
	if more := len(links) - mostLinks; more > 0 {
		fmt.Fprintf(tw, "and %d more: --json\n", more)
	}
	if err := tw.Flush(); err != nil {
		return err
	}
	rep.Runs[i].stackLines(w)
	_, err := fmt.Fprintln(w)
	return err
}

// modelShare is what the model gives of line rate.
func (x *Share) modelShare() float64 {
	if x.LineRate == 0 {
		return 0
	}
	return x.Model / x.LineRate
}

// sides says whether what is here sends and receives: of a half without Bidir, one of both.
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

func (rep *Report) table(w io.Writer) error {
	tw := tabwriter.NewWriter(w, 0, 0, 3, ' ', tabwriter.AlignRight)
	row := func(name string, f func(*Run) string) {
		fmt.Fprintf(tw, "%s\t", name)
		for i := range rep.Runs {
			fmt.Fprintf(tw, "%s\t", f(&rep.Runs[i]))
		}
		fmt.Fprintln(tw)
	}
	row("mode", func(r *Run) string { return r.Mode })
	row("digest", func(r *Run) string {
		if r.SHA256Match {
			return "match"
		}
		return "MISMATCH"
	})
	row("bytes", func(r *Run) string { return group(r.Bytes) })
	row("seconds", func(r *Run) string { return fmt.Sprintf("%.2f", r.Seconds) })
	row("rate MB/s", func(r *Run) string { return fmt.Sprintf("%.1f", r.Rate()/1e6) })
	sends, receives := rep.sides()
	if sends {
		row("sent from device memory", func(r *Run) string { return group(r.TX.Device) })
		row("sent from host memory", func(r *Run) string { return group(r.TX.Host) })
	}
	if receives {
		row("received in device memory", func(r *Run) string { return group(r.RX.Device) })
		row("received in host memory", func(r *Run) string { return group(r.RX.Host) })
	}
	row("header bytes", func(r *Run) string { return group(r.HeaderBytes) })
	row("copy engine bytes", func(r *Run) string { return group(r.CopyEngineBytes) })
	row("retransmitted bytes", func(r *Run) string { return group(r.RetransmittedBytes) })
	row("dropped packets", func(r *Run) string { return group(r.DroppedPackets) })
	if len(rep.Runs) > 0 && rep.Runs[0].GuestCPU != nil {
		per := func(f func(*CPU) float64) func(*Run) string {
			return func(r *Run) string { return fmt.Sprintf("%.2f", f(r.GuestCPU)/(float64(r.Bytes)/1e9)) }
		}
		row("guest CPU s/GB, user", per(func(c *CPU) float64 { return c.User }))
		row("system", per(func(c *CPU) float64 { return c.System }))
		row("irq", per(func(c *CPU) float64 { return c.IRQ }))
	}
	if len(rep.Runs) > 0 && rep.Runs[0].Hold != nil {
		held := func(f func(*Hold) uint64) func(*Run) string {
			return func(r *Run) string {
				if r.Hold == nil {
					return ""
				}
				return group(f(r.Hold))
			}
		}
		row("tokens held", held(func(h *Hold) uint64 { return h.Tokens }))
		row("until it stalled, times", held(func(h *Hold) uint64 { return h.Stalls }))
	}
	if slices.ContainsFunc(rep.Runs, func(r Run) bool { return r.LateTokens != nil }) {
		late := func(f func(*LateTokens) uint64) func(*Run) string {
			return func(r *Run) string {
				if r.LateTokens == nil {
					return ""
				}
				return group(f(r.LateTokens))
			}
		}
		row("tokens late", late(func(l *LateTokens) uint64 { return l.Tokens }))
		row("no buffer for, times", late(func(l *LateTokens) uint64 { return l.NoBuffer }))
	}
	if len(rep.Runs) > 0 && rep.Runs[0].Audit != nil {
		row("audit: payload found in RAM of A", func(r *Run) string { return fmt.Sprint(r.Audit.HitsSender) })
		row("in RAM of B", func(r *Run) string { return fmt.Sprint(r.Audit.HitsReceiver) })
	}
	if err := tw.Flush(); err != nil {
		return err
	}
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
	_, err := fmt.Fprintf(w, "; NIC: %s; seed %d\n", rep.NIC, rep.Seed)
	if h := rep.Half; err == nil && h != nil && h.PeerProved != nil {
		says := "proved"
		if !*h.PeerProved {
			says = "NOT PROVED: " + h.PeerSays
		}
		_, err = fmt.Fprintf(w, "this is the half of guest %s; the host of guest %s says of its own: %s\n", h.Guest, h.Peer,
			says)
	}
	if err == nil && rep.Pcap != nil {
		_, err = fmt.Fprintln(w, rep.Pcap)
	}
	return err
}

// group writes a number with its thousands apart.
func group(n uint64) string { return humanize.Comma(int64(n)) }
