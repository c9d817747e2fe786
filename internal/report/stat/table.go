package stat

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/dustin/go-humanize"

	"vnic.dev/vnic/internal/report"
)

// Table writes tables of now's ports, links and flows: rates per second between before and now, or totals since the
// process began if before is nil, of another process, or not older than now.
func Table(w io.Writer, before, now *Snapshot) error {
	t := table{seconds: 1}
	what := "since it began"
	if before != nil && before.PID == now.PID && now.Uptime > before.Uptime {
		t.seconds, t.bits, what = now.Uptime-before.Uptime, true, "per second"
	} else {
		before = new(Snapshot)
	}
	t.printf("vnic %s, process %d, up %v; %s:\n", now.Command, now.PID,
		time.Duration(now.Uptime*float64(time.Second)).Round(time.Second), what)
	if b := now.Sandbox; b != nil && b.Refused > 0 {
		would := "refused"
		if b.Mode != "on" {
			would = "would refuse"
		}
		t.printf("its sandbox %s %s system calls that vnic is not known to need\n", would, report.Number(b.Refused))
	}
	for i := range now.Ports {
		if p := &now.Ports[i]; p.Memory != nil {
			t.printf("the memory of %s's frontend occupies %s\n", p.Name, humanize.IBytes(*p.Memory))
		}
	}
	if len(now.Ports) == 0 {
		t.printf("no ports\n")
	} else {
		write(&t, t.portColumns(), t.portRows(before, now))
		t.links(before, now)
		t.flows(before.Flows, now.Flows)
	}
	_, err := io.WriteString(w, t.text.String())
	return err
}

type table struct {
	text    strings.Builder
	seconds float64
	bits    bool // show rates per second, of bytes as bits
}

func (t *table) printf(format string, args ...any) { fmt.Fprintf(&t.text, format, args...) }

func write[R any](t *table, columns report.Columns[R], rows []R) {
	var text strings.Builder
	_ = columns.Right(&text, rows, nil) // does not fail
	for line := range strings.Lines(text.String()) {
		t.printf("%s\n", strings.TrimRight(line, " \n"))
	}
}

func (t *table) amount() string {
	if t.bits {
		return "BIT RATE"
	}
	return "BYTES"
}

// rate returns a counter's growth divided by t.seconds, which is 1 for totals. A counter that has become smaller began
// at 0 again.
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

// bitRate formats n bits per second with an SI prefix and about three digits; a number without a prefix is whole.
func bitRate(n float64) string {
	n, prefix := humanize.ComputeSI(n)
	digits := 0
	for m := n; prefix != "" && m < 100 && digits < 2; m *= 10 {
		digits++
	}
	return strconv.FormatFloat(n, 'f', digits, 64) + " " + prefix + "bit/s"
}

// portRow is half of a queue pair, a direction of the port's link, or a reason for which the link dropped
// packets.
type portRow struct {
	port, queue, name string
	before, now       Direction
	shown             []string // headings of the counters to show; nil: all
}

// portColumns returns a column for each of directionCounters, with the sum of all bytes after the packets.
func (t *table) portColumns() report.Columns[portRow] {
	list := report.Columns[portRow]{
		{Title: "PORT", Text: func(r *portRow) string { return r.port }},
		{Title: "QUEUE", Text: func(r *portRow) string { return r.queue }},
		{Title: " ", Text: func(r *portRow) string { return r.name }}}
	add := func(title string, cell func(t *table, before, now *Direction) string) {
		list = append(list, report.Column[portRow]{Title: title, Text: func(r *portRow) string {
			if r.shown != nil && !slices.Contains(r.shown, title) {
				return ""
			}
			return cell(t, &r.before, &r.now)
		}})
	}
	for i, c := range directionCounters {
		add(c.column, c.cell)
		if i == 0 {
			add(t.amount(), func(t *table, a, b *Direction) string { return t.bytes(a.bytes(), b.bytes()) })
		}
	}
	return list
}

func (t *table) portRows(before, now *Snapshot) (rows []portRow) {
	for i := range now.Ports {
		p, old := &now.Ports[i], before.find(now.Ports[i].Name)
		wire := func(name string, before, now Direction, shown ...string) {
			rows = append(rows, portRow{p.Name, "wire", name, before, now, shown})
		}
		received := func(l *LinkCounters) Direction { return Direction{Packets: l.Received, HeaderBytes: l.ReceivedBytes} }
		sent := func(l *LinkCounters) Direction { return Direction{Packets: l.Sent, HeaderBytes: l.SentBytes} }
		wire("rx", received(&old.Link), received(&p.Link), directionCounters[0].column, t.amount())
		wire("tx", sent(&old.Link), sent(&p.Link), directionCounters[0].column, t.amount())
		for _, r := range slices.Sorted(maps.Keys(p.Link.Drops)) {
			wire(r, Direction{Drops: old.Link.Drops[r]}, Direction{Drops: p.Link.Drops[r]}, dropsColumn)
		}
		queue := func(index, name string, before, now Direction) {
			if now.Packets > 0 || now.Drops > 0 {
				rows = append(rows, portRow{p.Name, index, name, before, now, nil})
			}
		}
		for i, q := range p.Queues {
			var before Queue
			if i < len(old.Queues) {
				before = old.Queues[i]
			}
			index, split := fmt.Sprint(q.Index), ""
			if q.Split {
				split = " split"
			}
			queue(index+split, "rx", before.RX, q.RX)
			queue(index, "tx", before.TX, q.TX)
		}
	}
	return rows
}

// find returns the counters of the port with this name, or zero counters if s has no such port.
func (s *Snapshot) find(name string) *PortCounters {
	if i := slices.IndexFunc(s.Ports, func(p PortCounters) bool { return p.Name == name }); i >= 0 {
		return &s.Ports[i]
	}
	return new(PortCounters)
}
