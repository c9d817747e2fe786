package shape

import (
	"fmt"
	"sync/atomic"
)

// Edge is one direction of a link, or a memory.
type Edge struct {
	rate float64      // bytes per second, at scale 1
	free atomic.Int64 // the time (Now) from which the edge is free
	busy atomic.Int64 // nanoseconds for which packets have reserved it
}

// NewEdge makes an edge with a rate in bytes per second. If the rate is less than 1, NewEdge panics with a text that
// has the name.
func NewEdge(name string, rate float64) *Edge {
	if !(rate >= 1) {
		panic(fmt.Sprintf("shape: edge %s of %v bytes a second", name, rate))
	}
	return &Edge{rate: rate}
}

// Busy returns for how many nanoseconds packets have reserved the edge.
func (e *Edge) Busy() int64 { return e.busy.Load() }

// take reserves the edge for cost nanoseconds, from the time when it is free, but not before earliest. It returns the
// start.
func (e *Edge) take(earliest, cost int64) (start int64) {
	e.busy.Add(cost)
	for {
		free := e.free.Load()
		if start = max(free, earliest); e.free.CompareAndSwap(free, start+cost) {
			return start
		}
	}
}
