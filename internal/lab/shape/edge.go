package shape

import (
	"fmt"
	"sync/atomic"
)

// Edge is one direction of a link, or a memory.
type Edge struct {
	name string
	rate float64      // bytes a second
	free atomic.Int64 // from then on nobody has it
	busy atomic.Int64 // nanoseconds for which it has been taken
}

// NewEdge makes an edge of so many bytes a second, of which there is at least one.
func NewEdge(name string, rate float64) *Edge {
	if !(rate >= 1) {
		panic(fmt.Sprintf("shape: edge %s of %v bytes a second", name, rate))
	}
	return &Edge{name: name, rate: rate}
}

// Name is what NewEdge was given.
func (e *Edge) Name() string { return e.name }

// Rate is what NewEdge was given, whatever the scale.
func (e *Edge) Rate() float64 { return e.rate }

// Busy is for how long packets have had the edge, in nanoseconds, those included that have it now.
func (e *Edge) Busy() int64 { return e.busy.Load() }

// take has a packet have the edge for so long, from when it is free on, which it says, but not from before earliest.
func (e *Edge) take(earliest, cost int64) (start int64) {
	e.busy.Add(cost)
	for {
		free := e.free.Load()
		if start = max(free, earliest); e.free.CompareAndSwap(free, start+cost) {
			return start
		}
	}
}
