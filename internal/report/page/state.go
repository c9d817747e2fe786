package page

import (
	"encoding/json"

	"vnic.dev/vnic/internal/report/stat"
)

const (
	shownFlows  = 128 // of a state
	reportFlows = 32
	maxText     = 400 // runes of an event's
)

// State is what a page is given: what there is, and what has been.
type State struct {
	Page      *Page     `json:"page,omitempty"`
	Recording Recording `json:"recording"`        // live: of this moment alone
	Report    bool      `json:"report,omitempty"` // it is all there will be
}

// Page is stat's, within bounds.
type Page struct {
	*stat.Page
	Memory    []Memory `json:"memory"`
	MemoryAt  *float64 `json:"memory_at,omitempty"`  // seconds, as samples have them; nil: now
	MoreFlows int      `json:"more_flows,omitempty"` // that are not in the list
}

// bounded gives what a page shows of p, with so many flows.
func bounded(p *stat.Page, flows int) *Page {
	c, s := *p, *p.Snapshot
	c.Snapshot = &s
	out := &Page{Page: &c, Memory: memoryMaps(p.Memory)}
	c.Memory = nil
	if s.Flows != nil {
		f := *s.Flows
		shown := min(len(f.List), flows)
		out.MoreFlows = f.More + len(f.List) - shown
		f.List = f.List[:shown]
		s.Flows = &f
	}
	c.Events = make([]stat.Event, 0, len(p.Events))
	for _, e := range p.Events {
		if r := []rune(e.Text); len(r) > maxText {
			e.Text = string(r[:maxText]) + "..."
		}
		c.Events = append(c.Events, e)
	}
	return out
}

// encode gives JSON that may stand in a script element: encoding/json escapes <, > and &.
func (s *State) encode() []byte {
	b, err := json.Marshal(s)
	if err != nil {
		return []byte("{}") // not of these types
	}
	return b
}
