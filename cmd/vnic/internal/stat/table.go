package stat

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/dustin/go-humanize"
)

// Table writes the counters of now: what was counted since before, by the second, or since the process began if before is
// nil. Queues that have never seen a packet are left out.
func Table(w io.Writer, before, now *Snapshot) error {
	t := table{seconds: 1}
	what := "since it began"
	if before != nil && before.PID == now.PID && now.Uptime > before.Uptime {
		t.seconds = now.Uptime - before.Uptime
		what = "per second"
	} else {
		before = nil
	}
	if _, err := fmt.Fprintf(w, "vnic %s, process %d, up %v; %s:\n", now.Command, now.PID,
		time.Duration(now.Uptime*float64(time.Second)).Round(time.Second), what); err != nil {
		return err
	}
	if len(now.Ports) == 0 {
		_, err := fmt.Fprintln(w, "no ports")
		return err
	}
	var b strings.Builder
	t.tw = tabwriter.NewWriter(&b, 0, 0, 2, ' ', tabwriter.AlignRight)
	t.row("PORT", "QUEUE", "", "PACKETS", "BYTES", "DEVICE", "GPU FILE", "HOST", "DROPS")
	for i := range now.Ports {
		t.port(before.find(now.Ports[i].Name), &now.Ports[i])
	}
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

// find gives the counters of a port; nothing if it was not there.
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
}

func (t *table) row(cells ...string) { fmt.Fprintln(t.tw, strings.Join(cells, "\t")+"\t") }

// rate is how much a counter grew; one that is smaller than before began again.
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
	return humanize.IBytes(uint64(t.rate(before, now) + 0.5))
}

// port writes a row for the link in each direction, one for what was dropped, and those of the queues.
func (t *table) port(a, b *PortCounters) {
	t.row(b.Name, "wire", "rx", t.count(a.Link.Received, b.Link.Received), t.bytes(a.Link.ReceivedBytes, b.Link.ReceivedBytes), "", "", "", "")
	t.row(b.Name, "wire", "tx", t.count(a.Link.Sent, b.Link.Sent), t.bytes(a.Link.SentBytes, b.Link.SentBytes), "", "", "", "")
	reasons := make([]string, 0, len(b.Link.Drops))
	for r := range b.Link.Drops {
		reasons = append(reasons, r)
	}
	slices.Sort(reasons)
	for _, r := range reasons {
		t.row(b.Name, "wire", r, "", "", "", "", "", t.count(a.Link.Drops[r], b.Link.Drops[r]))
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

func (t *table) direction(port, queue, name string, a, b *Direction) {
	if b.Packets == 0 && b.Drops == 0 {
		return
	}
	t.row(port, queue, name, t.count(a.Packets, b.Packets), t.bytes(a.bytes(), b.bytes()), t.bytes(a.DeviceBytes, b.DeviceBytes),
		t.bytes(a.GPUFileBytes, b.GPUFileBytes), t.bytes(a.HostBytes, b.HostBytes), t.count(a.Drops, b.Drops))
}
