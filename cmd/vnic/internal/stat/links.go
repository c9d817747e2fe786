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
)

// links reads what those of a lab have carried.
type links struct {
	ports []*lab.Port // of machines of which somebody has said what links they have
	rated []*lab.Edge
	scale func() float64

	mu  sync.Mutex
	was map[*lab.Edge]lab.Carried // under mu: what has been shown
}

// newLinks gives nil where nobody has said what links there are.
func newLinks(l *lab.Lab) *links {
	x := &links{rated: l.Edges(), scale: l.Clock().Scale, was: make(map[*lab.Edge]lab.Carried)}
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

// read gives the links by name. None of their counters ever goes back: what they are made of is read one after the
// other while packets pass, and of their headers only the mean length is known.
func (x *links) read() (list []LabLink, scale *float64) {
	now := make(map[*lab.Edge]lab.Carried)
	for _, e := range x.rated {
		now[e] = lab.Carried{}
	}
	for _, p := range x.ports {
		p.Carry(now)
	}
	x.mu.Lock()
	for e, is := range now {
		was := x.was[e]
		is.Payload, is.Bytes = max(is.Payload, was.Payload), max(is.Bytes, was.Bytes)
		x.was[e] = is
		if is.Bytes > 0 || e.Rate > 0 {
			list = append(list, LabLink{Name: e.Name, Rate: e.Rate, Payload: is.Payload, Bytes: uint64(is.Bytes),
				Busy: time.Duration(e.Busy()).Seconds()})
		}
	}
	x.mu.Unlock()
	slices.SortFunc(list, func(a, b LabLink) int { return strings.Compare(a.Name, b.Name) })
	if len(x.rated) > 0 {
		n := x.scale()
		scale = &n
	}
	return list, scale
}

// mostLinks are in the table: those that were taken for longest, or carried most.
const mostLinks = 8

// links gives a row for each of the busiest links; none if none has carried anything.
func (t *table) links(before, now *Snapshot) (cells [][]string) {
	was := make(map[string]*LabLink)
	if before != nil {
		for i := range before.Links {
			was[before.Links[i].Name] = &before.Links[i]
		}
	}
	type row struct {
		was, is *LabLink
		busy    float64
	}
	var rows []row
	for i := range now.Links {
		r := row{was: was[now.Links[i].Name], is: &now.Links[i]}
		if r.was == nil {
			r.was = new(LabLink)
		}
		if r.busy = max(0, r.is.Busy-r.was.Busy); r.is.Bytes > 0 {
			rows = append(rows, r)
		}
	}
	if len(rows) == 0 {
		return nil
	}
	slices.SortStableFunc(rows, func(a, b row) int {
		return cmp.Or(cmp.Compare(b.busy, a.busy),
			cmp.Compare(t.rate(b.was.Bytes, b.is.Bytes), t.rate(a.was.Bytes, a.is.Bytes)))
	})
	amount := "BYTES"
	if t.bits {
		amount = "BIT RATE"
	}
	cells = append(cells, []string{"LINK", "RATE", "PAYLOAD", amount, "TAKEN"})
	for _, r := range rows[:min(len(rows), mostLinks)] {
		rate, taken := "", ""
		if r.is.Rate > 0 {
			rate, taken = lab.FormatEdgeRate(r.is.Name, r.is.Rate), fmt.Sprintf("%.2f s", r.busy)
			if before != nil { // a batch takes its links for as long as it needs them when it begins
				taken = fmt.Sprintf("%.0f %%", min(100*r.busy/t.seconds, 100))
			}
		}
		amount := t.bytes
		if strings.HasSuffix(r.is.Name, " memory") { // whose rate is in bytes, too
			amount = t.memory
		}
		cells = append(cells, []string{r.is.Name, rate, amount(r.was.Payload, r.is.Payload),
			amount(r.was.Bytes, r.is.Bytes), taken})
	}
	return cells
}

// linksTitle says how many links there are, and how slow.
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
