package shape

import (
	"math"
	"sync/atomic"
	"time"
)

// Credit is the most time that a thread which wakes late gets back, unless twice the packet's longest time on an edge
// is more.
const Credit = 5 * time.Millisecond

// Clock is the factor by which edges are slowed down.
type Clock struct {
	scale atomic.Uint64 // bits of a float64; 0: packets do not wait
}

// NewClock makes a clock with this scale.
func NewClock(scale float64) *Clock {
	c := new(Clock)
	c.SetScale(scale)
	return c
}

// SetScale changes the scale, also while packets pass; 0: packets do not wait.
func (c *Clock) SetScale(scale float64) { c.scale.Store(math.Float64bits(scale)) }

// Scale returns the scale.
func (c *Clock) Scale() float64 { return math.Float64frombits(c.scale.Load()) }

var base = time.Now()

// Now returns the time in nanoseconds since this package was initialized, plus 1: never 0.
func Now() int64 { return int64(time.Since(base)) + 1 }

// Until returns how long it is until time t of Now; 0 if t has passed.
func Until(t int64) time.Duration { return max(0, time.Duration(t-Now())) }
