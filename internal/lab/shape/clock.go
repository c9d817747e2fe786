package shape

import (
	"math"
	"sync/atomic"
	"time"
)

// Credit is how much time is made up for that a late wake-up lost.
const Credit = 5 * time.Millisecond

// Clock is common to the edges of a lab: time, and how much slower than their rates they are.
type Clock struct {
	scale atomic.Uint64 // a float64; 0: off
}

// NewClock makes a clock of edges that are scale times as slow as their rates say.
func NewClock(scale float64) *Clock {
	c := new(Clock)
	c.SetScale(scale)
	return c
}

// SetScale changes the scale, also while packets pass. 0 turns all edges off: everything passes at once.
func (c *Clock) SetScale(scale float64) { c.scale.Store(math.Float64bits(scale)) }

// Scale is what SetScale set.
func (c *Clock) Scale() float64 { return math.Float64frombits(c.scale.Load()) }

var base = time.Now()

// Now is the time of all clocks, in nanoseconds, never 0.
func Now() int64 { return int64(time.Since(base)) + 1 }

// Until is how long it is until a time of Now; not negative.
func Until(t int64) time.Duration { return max(0, time.Duration(t-Now())) }
