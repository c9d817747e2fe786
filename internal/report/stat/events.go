package stat

import (
	"cmp"
	"slices"
	"sync"
	"time"
)

// Bounds of events. A guest makes as many as it likes, and they push out nobody else's.
const (
	portEvents  = 256 // of one port that are kept
	shownEvents = 512 // of all that are shown
)

// events keeps the last ones of each port. Any goroutine may add.
type events struct {
	mu    sync.Mutex
	n     uint64
	ports map[string][]Event // by Event.Port: the lab's ports and links, whose names are not the guests'
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

// read gives what is shown, oldest first: where there is more, of each port as many as of any other that has more.
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
