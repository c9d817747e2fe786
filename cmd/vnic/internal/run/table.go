package run

import (
	"fmt"
	"io"
	"text/tabwriter"

	"github.com/dustin/go-humanize"
	"vnic.dev/vnic/guest-images/transfer"
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
	fmt.Fprintf(tw, "%s\nrail\tfrom\t\tto\t\tpath\tMB/s\tdevice bytes\thost bytes\tretransmitted\tdigest\n", mode)
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
		fmt.Fprintf(tw, "%d\t%s\t%s\t%s\t%s\t%s\t%.1f\t%s\t%s\t%s\t%s\n", r.Rail, r.From, r.FromGPU, r.To, r.ToGPU, path,
			r.Rate()/1e6, group(r.TX.Device+r.RX.Device), group(r.TX.Host+r.RX.Host), group(r.RetransmittedBytes), digest)
	}
	if err := tw.Flush(); err != nil {
		return err
	}
	_, err := fmt.Fprintf(w, "Jain's fairness %.3f\n\n", rep.Fairness(mode))
	return err
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
	row("sent from device memory", func(r *Run) string { return group(r.TX.Device) })
	row("sent from host memory", func(r *Run) string { return group(r.TX.Host) })
	row("received in device memory", func(r *Run) string { return group(r.RX.Device) })
	row("received in host memory", func(r *Run) string { return group(r.RX.Host) })
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
	if err == nil && rep.Pcap != nil {
		_, err = fmt.Fprintln(w, rep.Pcap)
	}
	return err
}

// group writes a number with its thousands apart.
func group(n uint64) string { return humanize.Comma(int64(n)) }
