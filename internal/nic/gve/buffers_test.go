package gve

import (
	"fmt"
	"testing"

	"vnic.dev/vnic/internal/nic/nictest"
	"vnic.dev/vnic/internal/testkit"
)

// The guest restarts its receive queues with buffers of another size, as Linux does for `ethtool -G rx-buf-len`.
//
// Invariant: nic/gve: Packet buffers have the size that the driver named last.
func TestBufferSizeChanges(t *testing.T) {
	w := newWorld(t)
	g := w.Bad
	for _, size := range []int{4096, 2048, 1024, 4096, 2048} {
		g.o.named, g.o.bufSize = size, size
		for _, split := range []bool{false, true} {
			for q := range g.o.pairs {
				g.startRx(q, split)
			}
			if l := g.dev.limits.Load(); l.MaxBytes != maxRSC(size) {
				t.Errorf("buffers of %d: GSO packets of %d bytes are taken, not %d", size, l.MaxBytes, maxRSC(size))
			}
			for _, n := range []int{0, 1, 1023, 1024, 1025, 2047, 2048, 2049, 4096, 4097, 8000} {
				f := tcp(w.A, g, n)
				in := n
				if !split {
					in += len(f.Header)
				}
				want := max(1, (in+size-1)/size)
				d := g.rxd[0]
				for range want {
					d.post(rawGPU + uint64(int(d.posted%64)*4096+4096-size)) // the last size bytes of a page
				}
				d.doorbell()
				w.A.Send(0, f)
				got := nictest.Arrives(t, g, 0, &f)
				name := fmt.Sprintf("%d bytes, buffers of %d, split %v", n, size, split)
				testkit.Equal(t, name+": buffers", got.Buffers, want)
				testkit.Equal(t, name+": split", got.Split, split)
				testkit.Equal(t, name+": not used", d.posted-d.seen, 0)
			}
		}
	}
	w.Moves(t)
}

// The device accepts header buffers from headerLimit bytes up to the most that a completion can report.
func TestHeaderBufferSizes(t *testing.T) {
	for _, header := range []uint16{headerLimit, headerLimit + 1, 512, rxMaxHdr} {
		c := newConfigured(t, 1)
		c.pass(opCreateRx, c.rxCreate(0, header))
		testkit.Equal(t, "bytes of a header buffer", c.dev.rx[0].p.headerSize, int(header))
	}
	for _, header := range []uint16{1, headerLimit - 1, rxMaxHdr + 1, 0xffff} {
		c := newConfigured(t, 1)
		testkit.Equal(t, fmt.Sprint("header buffers of ", header), c.command(opCreateRx, c.rxCreate(0, header)),
			statusInvalidArgument)
	}
}
