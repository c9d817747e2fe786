package shape

import (
	"fmt"
	"sync/atomic"
)

// Edge is one direction of a link, or a memory.
type Edge struct {
	rate float64      // bytes per second
	free atomic.Int64 // the time from which it is free
	busy atomic.Int64 // nanoseconds
}

// NewEdge makes an edge with a rate of at least 1 byte per second. It panics with the name if the rate is
// lower.
func NewEdge(name string, rate float64) *Edge {
	if !(rate >= 1) {
		panic(fmt.Sprintf("shape: edge %s of %v bytes a second", name, rate))
	}
	return &Edge{rate: rate}
}

// Busy returns for how many nanoseconds packets have reserved the edge.
func (e *Edge) Busy() int64 { return e.busy.Load() }

// take reserves the edge for cost nanoseconds when it is free, not before earliest, and returns the start.
func (e *Edge) take(earliest, cost int64) (start int64) {
	e.busy.Add(cost)
	for {
		free := e.free.Load()
		if start = max(free, earliest); e.free.CompareAndSwap(free, start+cost) {
			return start
		}
	}
}
