package uplink

import (
	"testing"

	"vnic.dev/vnic/internal/testkit"
	"vnic.dev/vnic/internal/wire"
)

// Invariant: uplink: No port uses up the buffers of another one.
func TestPartsOfTheOutbox(t *testing.T) {
	testkit.LeavesNothing(t)
	x, _ := tunnel(42)
	o := newOutbox(newSide(t, 1, x, 1500).up) // no goroutine sends the frames in this outbox
	all := cap(o.free)
	fill := func(l *lane) (fs []*frame) {
		for f := l.take(); f != nil; f = l.take() {
			fs = append(fs, f)
		}
		return fs
	}
	one, two := o.lane(1), o.lane(2)
	ones := fill(one)
	testkit.Equal(t, "buffers of a port alone", len(ones), all/2)
	twos := fill(two)
	testkit.Equal(t, "buffers of another beside it", len(twos), all/3)
	var w wakes
	testkit.Equal(t, "the first waits", one.Arm(&w), true)
	for ; one.Waiting(); ones = ones[1:] {
		o.release(ones[0])
	}
	testkit.Equal(t, "buffers that are left to the first", len(ones), all/3/2)
	rest := fill(o.lane(3))
	for i := uint32(4); len(o.free) > 0; i++ {
		rest = append(rest, fill(o.lane(i))...)
	}
	last := o.lane(wire.MaxPorts)
	testkit.Equal(t, "one without any waits", last.Arm(&w), true)
	o.release(rest[0])
	testkit.Equal(t, "wakes", w, 2)
	testkit.Equal(t, "it has a buffer", last.take() != nil, true)
}

type wakes int

func (w *wakes) Wake() { *w++ }
