package virtio

import (
	"sync/atomic"

	"vnic.dev/vnic/nic"
)

// counter has one writer at a time.
type counter struct{ v atomic.Uint64 }

func (c *counter) add(n uint64) { c.v.Store(c.v.Load() + n) }

// call is an eventfd that a frontend wants written: a queue's call, or its error. Any goroutine
// fires it, while the control goroutine may replace it, and the monitor take it away.
type call struct {
	lines *nic.Lines               // the device's
	line  atomic.Pointer[nic.Line] // nil: the driver polls
}

// fire writes the eventfd. A driver's broken call is its own loss.
func (c *call) fire() {
	if l := c.line.Load(); l != nil {
		l.Fire()
	}
}

// set puts a new eventfd (none if fd is negative) in the place of the old one.
func (c *call) set(fd int) {
	var l *nic.Line
	if fd >= 0 {
		l = c.lines.New(fd)
	}
	c.lines.End(c.line.Swap(l))
}
