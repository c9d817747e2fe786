package stat

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/dustin/go-humanize"

	"vnic.dev/vnic/internal/lab"
	"vnic.dev/vnic/internal/report"
)

type links struct {
	ports []*lab.Port // of machines that lab.Machine.Described accepts
	rated []*lab.Edge
	scale func() float64

	mu    sync.Mutex
	shown map[*lab.Edge]lab.Carried // under mu: the highest counts that read has seen
}

// newLinks returns nil if lab.Machine.Described accepts no machine that has ports.
func newLinks(l *lab.Lab) *links {
	x := &links{rated: l.Edges(), scale: l.Clock().Scale, shown: make(map[*lab.Edge]lab.Carried)}
	for _, m := range l.Machines() {
		if m.Described() {
			x.ports = append(x.ports, m.Ports...)
		}
	}
	if len(x.ports) == 0 {
		return nil
	}
	return x
}

// read returns the counters of the links that have a rate or have carried bytes, sorted by name. No counter decreases
// from one read to the next, although read is not atomic. scale is nil if no link has a rate.
func (x *links) read() (list []LabLink, scale *float64) {
	now := make(map[*lab.Edge]lab.Carried)
	for _, e := range x.rated {
		now[e] = lab.Carried{}
	}
	for _, p := range x.ports {
		p.Carry(now)
	}
	x.mu.Lock()
	for e, c := range now {
		c.Payload, c.Bytes = max(c.Payload, x.shown[e].Payload), max(c.Bytes, x.shown[e].Bytes)
		x.shown[e] = c
		if c.Bytes > 0 || e.Rate > 0 {
			list = append(list, LabLink{Name: e.Name, Rate: e.Rate, Payload: c.Payload, Bytes: uint64(c.Bytes),
				Busy: time.Duration(e.Busy()).Seconds()})
		}
	}
	x.mu.Unlock()
	slices.SortFunc(list, func(a, b LabLink) int { return strings.Compare(a.Name, b.Name) })
	if len(x.rated) > 0 {
		scale = new(x.scale())
	}
	return list, scale
}

const mostLinks = 8

type linkRow struct {
	before, now *LabLink
	busy        float64 // between before and now, in seconds
}

func (t *table) linkColumns() report.Columns[linkRow] {
	return report.Columns[linkRow]{
		{Title: "LINK", Text: func(r *linkRow) string { return r.now.Name }},
		{Title: "RATE", Text: func(r *linkRow) string {
			if r.now.Rate == 0 {
				return ""
			}
			return lab.FormatEdgeRate(r.now.Name, r.now.Rate)
		}},
		{Title: "PAYLOAD", Text: func(r *linkRow) string { return t.carried(r, r.before.Payload, r.now.Payload) }},
		{Title: t.amount(), Text: func(r *linkRow) string { return t.carried(r, r.before.Bytes, r.now.Bytes) }},
		{Title: "TAKEN", Text: func(r *linkRow) string {
			switch {
			case r.now.Rate == 0:
				return ""
			case t.bits: // a batch counts all its busy time when it begins: the quotient may exceed 100 %
				return fmt.Sprintf("%.0f %%", min(100*r.busy/t.seconds, 100))
			}
			return fmt.Sprintf("%.2f s", r.busy)
		}},
	}
}

// carried formats bytes that a link has carried, with t.bits as a rate: of a memory in bytes per second, as lab files
// give its rate, of other links in bits per second.
func (t *table) carried(r *linkRow, before, now uint64) string {
	if t.bits && strings.HasSuffix(r.now.Name, " memory") {
		return humanize.Bytes(uint64(t.rate(before, now)+0.5)) + "/s"
	}
	return t.bytes(before, now)
}

// links adds the table of the busiest links, at most mostLinks, without links that have carried nothing.
func (t *table) links(before, now *Snapshot) {
	old := make(map[string]*LabLink)
	for i := range before.Links {
		old[before.Links[i].Name] = &before.Links[i]
	}
	var rows []linkRow
	for i := range now.Links {
		l := &now.Links[i]
		r := linkRow{before: cmp.Or(old[l.Name], new(LabLink)), now: l}
		if r.busy = max(0, l.Busy-r.before.Busy); l.Bytes > 0 {
			rows = append(rows, r)
		}
	}
	if len(rows) == 0 {
		return
	}
	slices.SortStableFunc(rows, func(a, b linkRow) int {
		return cmp.Or(cmp.Compare(b.busy, a.busy),
			cmp.Compare(t.rate(b.before.Bytes, b.now.Bytes), t.rate(a.before.Bytes, a.now.Bytes)))
	})
	t.printf("\n%s\n", now.linksTitle())
	write(t, t.linkColumns(), rows[:min(len(rows), mostLinks)])
}

func (s *Snapshot) linksTitle() string {
	slow := ""
	switch {
	case s.Scale == nil || *s.Scale == 1:
	case *s.Scale == 0:
		slow = ", at the moment not as slow as their rates"
	default:
		slow = fmt.Sprintf(", %s times slower than their rates", humanize.Ftoa(*s.Scale))
	}
	most := ""
	if n := len(s.Links); n > mostLinks {
		most = fmt.Sprintf(", the busiest of %d (--json shows all)", n)
	}
	return "links" + slow + most + ":"
}
