package stat

import (
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/dustin/go-humanize"
)

// Table writes a table of counters: the rates per second between before and now, or, if before is
// nil, the sums since the process began. It leaves out queues that have never had a packet.
func Table(w io.Writer, before, now *Snapshot) error {
	t := table{seconds: 1}
	amount := "BYTES"
	what := "since it began"
	if before != nil && before.PID == now.PID && now.Uptime > before.Uptime {
		t.seconds = now.Uptime - before.Uptime
		what = "per second"
		t.bits, amount = true, "BIT RATE"
	} else {
		before = nil
	}
	if _, err := fmt.Fprintf(w, "vnic %s, process %d, up %v; %s:\n", now.Command, now.PID,
		time.Duration(now.Uptime*float64(time.Second)).Round(time.Second), what); err != nil {
		return err
	}
	if b := now.Sandbox; b != nil && b.Refused > 0 {
		would := "refused"
		if b.Mode != "on" {
			would = "would refuse"
		}
		if _, err := fmt.Fprintf(w, "its sandbox %s %s system calls that vnic is not known to need\n", would,
			humanize.Comma(int64(b.Refused))); err != nil {
			return err
		}
	}
	for i := range now.Ports {
		if p := &now.Ports[i]; p.Memory != nil {
			_, err := fmt.Fprintf(w, "the memory of %s's frontend occupies %s\n", p.Name, humanize.IBytes(*p.Memory))
			if err != nil {
				return err
			}
		}
	}
	if len(now.Ports) == 0 {
		_, err := fmt.Fprintln(w, "no ports")
		return err
	}
	head := []string{"PORT", "QUEUE", ""}
	for i, c := range directionCounters {
		if c.column != "" {
			head = append(head, c.column)
		}
		if i == 0 {
			head = append(head, amount)
		}
	}
	err := t.write(w, func() {
		t.row(head...)
		for i := range now.Ports {
			t.port(before.find(now.Ports[i].Name), &now.Ports[i])
		}
	})
	if rows := t.links(before, now); err == nil && len(rows) > 0 {
		if _, err = fmt.Fprintf(w, "\n%s\n", now.linksTitle()); err == nil {
			err = t.write(w, func() {
				for _, r := range rows {
					t.row(r...)
				}
			})
		}
	}
	if err == nil {
		var was *Flows
		if before != nil {
			was = before.Flows
		}
		err = t.flowTable(w, was, now.Flows)
	}
	return err
}

// write writes the rows that f makes, each column as wide as its widest cell.
func (t *table) write(w io.Writer, f func()) error {
	var b strings.Builder
	t.tw = tabwriter.NewWriter(&b, 0, 0, 2, ' ', tabwriter.AlignRight)
	f()
	if err := t.tw.Flush(); err != nil {
		return err
	}
	for line := range strings.Lines(b.String()) {
		if _, err := io.WriteString(w, strings.TrimRight(line, " \n")+"\n"); err != nil {
			return err
		}
	}
	return nil
}

// find returns the counters of a port; all are zero if the snapshot does not have the port.
func (s *Snapshot) find(name string) *PortCounters {
	if s != nil {
		if i := slices.IndexFunc(s.Ports, func(p PortCounters) bool { return p.Name == name }); i >= 0 {
			return &s.Ports[i]
		}
	}
	return new(PortCounters)
}

type table struct {
	tw      *tabwriter.Writer
	seconds float64
	tokens  bool // there is a column for the tokens that receivers hold
	bits    bool // byte counters are shown in bits per second, like the rates of links
}

func (t *table) row(cells ...string) { fmt.Fprintln(t.tw, strings.Join(cells, "\t")+"\t") }

// rate returns the growth of a counter per second. A counter that is smaller than before was reset
// to 0 in between.
func (t *table) rate(before, now uint64) float64 {
	if before > now {
		before = 0
	}
	return float64(now-before) / t.seconds
}

func (t *table) count(before, now uint64) string {
	return humanize.Comma(int64(t.rate(before, now) + 0.5))
}
func (t *table) bytes(before, now uint64) string {
	n := t.rate(before, now)
	if t.bits {
		return bitRate(8 * n)
	}
	return humanize.IBytes(uint64(n + 0.5))
}

// memory formats the bytes that a memory has carried, as bytes does; but rates are in bytes per
// second, not in bits.
func (t *table) memory(before, now uint64) string {
	if !t.bits {
		return t.bytes(before, now)
	}
	return humanize.Bytes(uint64(t.rate(before, now)+0.5)) + "/s"
}

// bitRate formats a rate with three digits and a suitable prefix: "0 bit/s", "16.8 Mbit/s".
func bitRate(n float64) string {
	n, prefix := humanize.ComputeSI(n)
	digits := 0
	for m := n; prefix != "" && m < 100 && digits < 2; m *= 10 {
		digits++
	}
	return strconv.FormatFloat(n, 'f', digits, 64) + " " + prefix + "bit/s"
}

// port writes the rows of a port: one for each direction of its link, one for each reason of drops,
// and one for each direction of each queue.
func (t *table) port(a, b *PortCounters) {
	was, is := &a.Link, &b.Link
	t.wire(b.Name, "rx", t.count(was.Received, is.Received), t.bytes(was.ReceivedBytes, is.ReceivedBytes), "")
	t.wire(b.Name, "tx", t.count(was.Sent, is.Sent), t.bytes(was.SentBytes, is.SentBytes), "")
	reasons := make([]string, 0, len(b.Link.Drops))
	for r := range b.Link.Drops {
		reasons = append(reasons, r)
	}
	slices.Sort(reasons)
	for _, r := range reasons {
		t.wire(b.Name, r, "", "", t.count(a.Link.Drops[r], b.Link.Drops[r]))
	}
	for i, q := range b.Queues {
		var was Queue
		if i < len(a.Queues) {
			was = a.Queues[i]
		}
		name := fmt.Sprint(q.Index)
		if q.Split {
			name += " split"
		}
		t.direction(b.Name, name, "rx", &was.RX, &q.RX)
		t.direction(b.Name, fmt.Sprint(q.Index), "tx", &was.TX, &q.TX)
	}
}

// wire writes a row of the link. A link has fewer counters than a queue, so other cells are empty.
func (t *table) wire(port, name, packets, bytes, drops string) {
	cells := []string{port, "wire", name, packets, bytes}
	for _, c := range directionCounters[1:] {
		switch c.column {
		case "":
		case dropsColumn:
			cells = append(cells, drops)
		default:
			cells = append(cells, "")
		}
	}
	t.row(cells...)
}

func (t *table) direction(port, queue, name string, a, b *Direction) {
	if b.Packets == 0 && b.Drops == 0 {
		return
	}
	cells := []string{port, queue, name}
	for i, c := range directionCounters {
		if c.column != "" {
			cells = append(cells, c.cell(t, a, b))
		}
		if i == 0 {
			cells = append(cells, t.bytes(a.bytes(), b.bytes()))
		}
	}
	t.row(cells...)
}
