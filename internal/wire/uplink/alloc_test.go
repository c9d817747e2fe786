//go:build !race

package uplink

import (
	"testing"

	"vnic.dev/vnic/internal/testkit"
	"vnic.dev/vnic/internal/wire"
)

func TestFramesAllocateNothing(t *testing.T) {
	testkit.LeavesNothing(t)
	for name, c := range carriers(t) {
		t.Run(name, func(t *testing.T) {
			from, to := newSide(t, 1, c[0], 1500), newSide(t, 2, c[1], 1500)
			if s, ok := from.up.c.(*stream); ok {
				testkit.Eventually(t, "the peer is there", func() bool { return s.now() != nil })
			}
			s := &sink{"sink", make(chan int, 1<<16)}
			link := testkit.Must(to.sw.Attach(s, wire.LinkOptions{}))(t)
			link.Deliver(wire.NewWorker(), []*wire.Packet{packet(t, plain(macOf(9), from.mac, ""))})
			from.next()
			p := packet(t, plain(from.mac, macOf(9), "hello"))
			one := []*wire.Packet{p}
			once := func() {
				p.Prepare()
				from.link.Deliver(from.w, one)
				taken(t, p)
				<-s.bytes
			}
			once()
			if n := testing.AllocsPerRun(1000, once); n > 0 {
				t.Errorf("%v allocations a frame", n)
			}
		})
	}
}
