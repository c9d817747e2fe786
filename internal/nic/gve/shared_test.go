package gve

import (
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/dma"
	"vnic.dev/vnic/internal/nic/nictest"
	"vnic.dev/vnic/internal/testkit"
	"vnic.dev/vnic/internal/wire"
)

// Invariant: nic/gve: Frames in memory that is not shared are dropped and counted, and their queue
// continues.
func TestMemoryThatIsNotShared(t *testing.T) {
	const (
		more = 1 << 36
		size = 1 << 20
	)
	for name, c := range map[string]struct {
		flags            int
		before           bool // the file is first mapped shared, also for the NIC, and unmapped again
		pages            bool // mapped for the NIC page by page, as with an IOMMU
		noFile, isShared bool
	}{
		"shared":            {flags: unix.MAP_SHARED, isShared: true},
		"shared, in pages":  {flags: unix.MAP_SHARED, isShared: true, pages: true},
		"private":           {flags: unix.MAP_PRIVATE},
		"private, in pages": {flags: unix.MAP_PRIVATE, pages: true},
		"remapped":          {flags: unix.MAP_PRIVATE, before: true},
		"without a file":    {flags: unix.MAP_PRIVATE, noFile: true},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			g := w.Bad
			g.space.SetPeer(os.Getpid(), nil)
			fd := int(testkit.Memfd(t, size).Fd())
			mapped := func(flags int) []byte {
				mem, err := unix.Mmap(fd, 0, size, unix.PROT_READ|unix.PROT_WRITE, flags)
				g.OK(err)
				return mem
			}
			if c.before {
				mem := mapped(unix.MAP_SHARED)
				copy(mem, "what lay there before")
				g.OK(g.space.Add(dma.Map{IOVA: more, Size: size, FD: fd}))
				g.OK(g.space.Remove(more, size))
				g.OK(unix.Munmap(mem))
			}
			mem := mapped(c.flags)
			defer func() { g.OK(unix.Munmap(mem)) }()
			switch {
			case c.noFile:
				g.OK(g.space.Add(dma.Map{IOVA: more, Size: size, FD: -1, NoAccess: true}))
			case c.pages:
				for off := uint64(0); off < size; off += 4096 {
					g.OK(g.space.Add(dma.Map{IOVA: more + off, Size: 4096, FD: fd, FileOffset: off}))
				}
			default:
				g.OK(g.space.Add(dma.Map{IOVA: more, Size: size, FD: fd}))
			}
			lost := func() uint64 { return g.Port().Link().Counters().Drops[wire.DropFault] }
			before := lost()

			f := tcp(g, w.A, 1000)
			head, b := g.Alloc(len(f.Header))
			copy(b, f.Header)
			copy(mem, f.Payload)
			w.A.Post(0, 1)
			for range 3 {
				g.txd[0].packet(txDesc{addr: head, length: uint16(len(f.Header)), csum: f.Partial},
					txDesc{addr: more, length: uint16(len(f.Payload))})
			}
			g.Sent(0)
			if c.isShared {
				nictest.Arrives(t, w.A, 0, &f)
			} else {
				testkit.Equal(t, "frames lost", lost()-before, 3)
			}

			d := g.rxd[0]
			d.post(more + 8192)
			d.doorbell()
			w.A.Send(0, tcp(w.A, g, 100))
			var x rxCompl
			if d.next(&x); x.bad == c.isShared {
				t.Errorf("a buffer there: %+v", x)
			}

			if w.A.startRx(0, false); !c.isShared { // discards A's posted buffers, and unread frames in them
				w.A.Post(0, 1)
			}
			g.sendsTo(w.A, 0, 900)
			w.A.sendsTo(g, 0, 900)
			testkit.NoError(t, g.failure("tx0"))
			testkit.NoError(t, g.failure("rx0"))
			p := g.txd[1].params
			p.desc = more
			if err := g.dev.tx[1].start(p); (err == nil) != c.isShared {
				t.Errorf("a ring there: %v", err)
			}
			w.Moves(t)
		})
	}
}
