package stat

import (
	"cmp"
	"slices"
	"sync"
	"time"
)

// A guest can cause any number of events: events keeps the newest of each port, whatever other ports do.
const (
	portEvents  = 256 // kept of each port
	shownEvents = 512 // that read returns at most, unless there are more ports
)

// events keeps the last portEvents events of each port. Any goroutine may call its methods.
type events struct {
	mu    sync.Mutex
	n     uint64
	ports map[string][]Event // by Event.Port: a name that guests cannot choose
}

func (e *events) add(x Event) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.n++
	x.Seq, x.Time = e.n, time.Now()
	if e.ports == nil {
		e.ports = map[string][]Event{}
	}
	list := e.ports[x.Port]
	if len(list) == portEvents {
		list = append(list[:0], list[1:]...)
	}
	e.ports[x.Port] = append(list, x)
}

// read returns the newest events of each port, oldest first: at most shownEvents in all, with the same maximum for
// each port; with more than shownEvents ports, one event of each.
func (e *events) read() []Event {
	e.mu.Lock()
	defer e.mu.Unlock()
	each := portEvents
	for ; each > 1; each-- {
		all := 0
		for _, list := range e.ports {
			all += min(len(list), each)
		}
		if all <= shownEvents {
			break
		}
	}
	shown := []Event{}
	for _, list := range e.ports {
		shown = append(shown, list[max(0, len(list)-each):]...)
	}
	slices.SortFunc(shown, func(a, b Event) int { return cmp.Compare(a.Seq, b.Seq) })
	return shown
}
