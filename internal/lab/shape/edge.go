package shape

import (
	"fmt"
	"sync/atomic"
)

// Edge is one direction of a link, or a memory.
type Edge struct {
	rate float64      // bytes per second
	free atomic.Int64 // the time from which it is free
	busy atomic.Int64 // nanoseconds reserved so far
}

// NewEdge makes an edge with a rate in bytes per second, at least 1. The name is for the panic that a lower rate
// causes.
func NewEdge(name string, rate float64) *Edge {
	if !(rate >= 1) {
		panic(fmt.Sprintf("shape: edge %s of %v bytes a second", name, rate))
	}
	return &Edge{rate: rate}
}

// Busy returns for how many nanoseconds packets have reserved the edge, including current
// reservations.
func (e *Edge) Busy() int64 { return e.busy.Load() }

// take reserves the edge for cost nanoseconds, from the time at which it is free, but not before
// earliest, and returns that time.
func (e *Edge) take(earliest, cost int64) (start int64) {
	e.busy.Add(cost)
	for {
		free := e.free.Load()
		if start = max(free, earliest); e.free.CompareAndSwap(free, start+cost) {
			return start
		}
	}
}
