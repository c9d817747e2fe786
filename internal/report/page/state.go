package page

import (
	"encoding/json"

	"vnic.dev/vnic/internal/report/stat"
)

const (
	shownFlows  = 128 // most flows in a live state
	reportFlows = 32
	maxText     = 400 // most runes of an event's text
)

// State is the data of a page: the counters of one moment (not in a Recorder's History), and samples of counters.
type State struct {
	Page      *Page     `json:"page,omitempty"`
	Recording Recording `json:"recording"`        // with a live Page: only the sample of its moment
	Report    bool      `json:"report,omitempty"` // no newer state follows
}

// Page is stat.Page within the bounds of what a page shows.
type Page struct {
	*stat.Page
	Memory    []Memory `json:"memory"`
	MemoryAt  *float64 `json:"memory_at,omitempty"`  // when Memory was read, as sampleJSON.At; nil: with the counters
	MoreFlows int      `json:"more_flows,omitempty"` // number of flows left out of the list of flows
}

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

// encode returns JSON that may stand in a script element: encoding/json escapes <, > and &.
func (s *State) encode() []byte {
	b, err := json.Marshal(s)
	if err != nil {
		return []byte("{}") // these types can always be encoded
	}
	return b
}
