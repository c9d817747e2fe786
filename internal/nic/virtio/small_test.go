package virtio_test

import (
	"bytes"
	"fmt"
	"slices"
	"testing"

	"vnic.dev/vnic/internal/nic/nictest"
	"vnic.dev/vnic/internal/testkit"
	"vnic.dev/vnic/internal/wire"
	"vnic.dev/vnic/virtq"
)

type smallRing struct {
	*handRing
	addr uint64
	each uint64
}

// small replaces receive queue 0's ring by one of size descriptors, with equal buffers whose length is each, and
// posts n of them.
func (g *suiteGuest) small(size uint16, each, n int) *smallRing {
	g.Helper()
	addr, _ := g.Alloc(int(size) * each)
	r := &smallRing{handRing: g.handRing(0), addr: addr, each: uint64(each)}
	r.setup.Size = size
	r.restart()
	r.post(n)
	return r
}

func (r *smallRing) post(n int) {
	for range n {
		i := r.next % r.setup.Size
		put(r.desc, int(i), virtq.Buf{Addr: r.addr + uint64(i)*r.each, Len: uint32(r.each)}, vringWrite, 0)
		le.PutUint16(r.avail[4+2*int(i):], i)
		r.next++
		r.entries++
	}
	r.publish()
}

// came returns the bytes in used chains from number first on, and the number of these chains.
func (r *smallRing) came(first int) (b []byte, chains int) {
	for i := first; i < int(r.usedIdx()); i++ {
		e := r.used[4+8*(i%int(r.setup.Size)):]
		addr := r.addr + uint64(le.Uint32(e))*r.each
		b = append(b, r.g.At(addr)[:le.Uint32(e[4:])]...)
		chains++
	}
	return b, chains
}

// arrived fails the test unless a frame has arrived whole in as many chains as it needs.
func (r *smallRing) arrived(first int, f *nictest.Frame) {
	r.g.Helper()
	b, chains := r.came(first)
	want := append(f.Header[:len(f.Header):len(f.Header)], f.Payload...)
	if need := (12 + len(want) + int(r.each) - 1) / int(r.each); chains != need || len(b) < 12 ||
		int(le.Uint16(b[10:])) != need {
		r.g.Fatalf("a frame of %d in buffers of %d: %d bytes in %d of them; drops %v", len(want), r.each, len(b), chains,
			r.g.Port().Link().Counters().Drops)
	}
	if !bytes.Equal(b[12:], want) {
		r.g.Errorf("a frame of %d in buffers of %d: %d other bytes", len(want), r.each, len(b)-12)
	}
}

// A driver may post mergeable buffers of any length from that of virtio_net_hdr on (virtio 1.3, 5.1.6.3.1).
func TestFrameTakesAsManyBuffersAsItNeeds(t *testing.T) {
	for _, c := range []struct {
		each   int
		frames []int
	}{
		{12, []int{0, 1, 60, 1448}}, {13, []int{0, 1, 1448}}, {64, []int{1, 1448, 9000, 16000, 65495}},
		{128, []int{1448, 16000, 65000}}, {256, []int{1448, 16000, 65000}}, {512, []int{1448, 32000, 65000, 65495}},
		{1000, []int{1448, 65000}}, {1526, []int{1448, 32000, 65000}}, {2048, []int{1448, 65000}},
	} {
		for _, lacks := range []uint64{0, fVersion1, fEventIdx} {
			t.Run(fmt.Sprintf("%d without %x", c.each, lacks), func(t *testing.T) {
				files, sw := nictest.Switch(t)
				a := newSuiteGuest(t, files, sw, 0, rawOptions{pairs: 1, mtu: 1500, patience: patient})
				b := newSuiteGuest(t, files, sw, 1, rawOptions{pairs: 1, mtu: 1500, drop: lacks})
				r := b.small(2048, c.each, 2048)
				for _, n := range c.frames {
					f := tcp(a, b, n)
					if n > 1446 {
						f = superFrame(a, b, n, 1446)
					}
					first := int(r.usedIdx())
					a.Send(0, f)
					r.arrived(first, &f)
					r.post(int(r.usedIdx()) - first)
				}
				testkit.Equal(t, "errors", len(b.dev.Errors()), 0)
			})
		}
	}
}

// A split frame takes as many chains as its payload needs payload buffers.
func TestSplitFrameTakesAsManyBuffersAsItNeeds(t *testing.T) {
	for _, each := range []int{128, 512, 1000} {
		t.Run(fmt.Sprint(each), func(t *testing.T) {
			w := newWorldWith(t, rawOptions{pairs: 2, mtu: 1500, patience: patient, p2p: true})
			nictest.SplitTo(t, w.Bad, 1, 2000)
			r := w.Bad.handRing(2)
			f := superFrame(w.A, w.Bad, 65000, 1446)
			need := (65000 + each - 1) / each
			heads, _ := w.Bad.Alloc(268)
			for i := range need {
				r.chain(vringWrite, virtq.Buf{Addr: heads, Len: 268},
					virtq.Buf{Addr: rawGPU + uint64(i*each), Len: uint32(each)})
			}
			r.publish()
			w.A.Send(0, f)
			testkit.Equal(t, "chains used", int(r.usedIdx()), need)
			if !bytes.Equal(w.Bad.GPUMem[:65000], f.Payload) {
				t.Error("other bytes")
			}
		})
	}
}

// A frame waits for enough buffers only if the ring has space for them.
func TestFrameWaitsForManyBuffers(t *testing.T) {
	files, sw := nictest.Switch(t)
	a := newSuiteGuest(t, files, sw, 0, rawOptions{pairs: 1, mtu: 1500, patience: patient})
	b := newSuiteGuest(t, files, sw, 1, rawOptions{pairs: 1, mtu: 1500})
	f := superFrame(a, b, 65000, 1446) // 65066 bytes, 128 chains
	r := b.small(128, 512, 100)
	busy := b.Port().Link().Counters().Busy
	a.Queue(0, f)
	testkit.Eventually(t, "a frame that waits", func() bool { return b.Port().Link().Counters().Busy > busy })
	testkit.Equal(t, "chains used", r.usedIdx(), 0)
	r.post(28)
	a.Sent(0)
	r.arrived(0, &f)

	r = b.small(64, 512, 64)
	a.Send(0, f)
	testkit.Equal(t, "chains used", r.usedIdx(), 0)
	testkit.Equal(t, "frames too big", b.Port().Link().Counters().Drops[wire.DropTooBig], 1)
}

func TestFrameThatNeedsMoreChainsThanTheRingHasPlacesIsTooBig(t *testing.T) {
	for _, c := range []struct {
		parts, chains int // buffers of each chain; posted chains, in a ring of 16 descriptors
		indirect      bool
		tooBig        bool
	}{
		{1, 16, false, true}, {1, 15, false, false}, {2, 8, false, true}, {2, 7, false, false}, {3, 5, false, true},
		{3, 4, false, false}, {16, 1, false, true}, {2, 8, true, false}, {2, 16, true, true},
	} {
		t.Run(fmt.Sprintf("%+v", c), func(t *testing.T) {
			files, sw := nictest.Switch(t)
			a := newSuiteGuest(t, files, sw, 0, rawOptions{pairs: 1, mtu: 1500, patience: patient})
			b := newSuiteGuest(t, files, sw, 1, rawOptions{pairs: 1, mtu: 1500})
			r := b.handRing(0)
			r.setup.Size = 16
			r.restart()
			addr, _ := b.Alloc(64)
			post := func() {
				bufs := repeat(virtq.Buf{Addr: addr, Len: 64 / uint32(c.parts)}, c.parts)
				if c.indirect {
					r.table(r.entries%16, vringWrite, bufs)
				} else {
					r.chain(vringWrite, bufs...)
				}
			}
			for range c.chains {
				post()
			}
			r.publish()
			drops := func() uint64 { return b.Port().Link().Counters().Drops[wire.DropTooBig] }
			busy := b.Port().Link().Counters().Busy
			f := superFrame(a, b, 4000, 1446) // 64 chains of 64 bytes
			a.Queue(0, f)
			if !c.tooBig {
				testkit.Eventually(t, "a frame that waits", func() bool { return b.Port().Link().Counters().Busy > busy })
				testkit.Equal(t, "frames too big", drops(), 0)
				return
			}
			a.Sent(0)
			testkit.Equal(t, "frames too big", drops(), 1)
			testkit.Equal(t, "chains used", r.usedIdx(), 0)
		})
	}
}

// A ring without room for another chain like the others may get a shorter one: then the queue walks over its chains
// again, and takes a frame that was too big before.
func TestShorterChainThanTheOthersCountsAnew(t *testing.T) {
	files, sw := nictest.Switch(t)
	a := newSuiteGuest(t, files, sw, 0, rawOptions{pairs: 1, mtu: 1500, patience: patient})
	b := newSuiteGuest(t, files, sw, 1, rawOptions{pairs: 1, mtu: 1500})
	r := b.handRing(0)
	r.setup.Size = 16
	r.restart()
	addr, _ := b.Alloc(64)
	for range 5 {
		r.chain(vringWrite, repeat(virtq.Buf{Addr: addr, Len: 20}, 3)...)
	}
	r.publish()
	f := tcp(a, b, 270) // 336 bytes with headers
	a.Send(0, f)
	testkit.Equal(t, "frames too big", b.Port().Link().Counters().Drops[wire.DropTooBig], 1)
	r.chain(vringWrite, virtq.Buf{Addr: addr, Len: 60})
	r.publish()
	a.Send(0, f)
	testkit.Equal(t, "chains used", r.usedIdx(), 6)
}

// A frame takes at most 1025 chains of one buffer each.
//
// Invariant: nic/virtio: No ring makes a sender walk, or a queue hold, more than the descriptors of
// one frame.
func TestFrameOfTooManyBuffers(t *testing.T) {
	files, sw := nictest.Switch(t)
	a := newSuiteGuest(t, files, sw, 0, rawOptions{pairs: 1, mtu: 1500})
	b := newSuiteGuest(t, files, sw, 1, rawOptions{pairs: 1, mtu: 1500})
	f := superFrame(a, b, 65000, 1446)
	r := b.small(4096, 63, 4096)
	for i := range 3 {
		a.Send(0, f)
		testkit.Equal(t, "chains used", int(r.usedIdx()), 1025*(i+1))
		got, _ := r.came(1025 * i)
		testkit.Equal(t, "bytes in them", len(got), 0)
	}
	chains, _ := b.dev.RxLists(0)
	if n := slices.IndexFunc(chains, func(n int) bool { return n == 0 }); n != 1025 {
		t.Errorf("%d chains were looked at", n)
	}
}

func TestListsOfManyChainsAreKeptForAWhile(t *testing.T) {
	for _, each := range []int{63, 100} {
		files, sw := nictest.Switch(t)
		a := newSuiteGuest(t, files, sw, 0, rawOptions{pairs: 1, mtu: 1500})
		b := newSuiteGuest(t, files, sw, 1, rawOptions{pairs: 1, mtu: 1500})
		r := b.small(2048, each, 2048)
		pass := func(f nictest.Frame) (chains []int, frame int) {
			first := int(r.usedIdx())
			a.Send(0, f)
			r.arrived(first, &f)
			r.post(int(r.usedIdx()) - first)
			return b.dev.RxLists(0)
		}
		long := superFrame(a, b, 600*each, 1446)
		for range 2 { // the second long frame makes the count of short ones start again
			pass(long)
			for i := range 63 {
				if chains, frame := pass(tcp(a, b, i)); len(chains) <= 256 || frame <= 256 {
					t.Fatalf("after %d short frames: %d chains are kept, and room for %d segments", i+1, len(chains), frame)
				}
			}
		}
		pass(tcp(a, b, 64))
		chains, frame := pass(tcp(a, b, 65)) // the 64th frame shortened the list of chains, this one the lists of segments
		testkit.Equal(t, "chains kept", len(chains), 256)
		short(t, "after short frames", append(chains, frame)...)
	}
}

func BenchmarkLongAndShortFrames(b *testing.B) {
	files, sw := nictest.Switch(b)
	from := newSuiteGuest(b, files, sw, 0, rawOptions{pairs: 1, mtu: 1500, patience: patient})
	to := newSuiteGuest(b, files, sw, 1, rawOptions{pairs: 1, mtu: 1500})
	r := to.small(2048, 64, 2048)
	long, short := superFrame(from, to, 65000, 1446), tcp(from, to, 10)
	inLong, inShort := from.layOut(&long, true), from.layOut(&short, true)
	var used [4]virtq.Used
	for name, pair := range map[string][2][]virtq.Buf{"long": {inLong, inLong}, "short": {inShort, inShort},
		"in turn": {inLong, inShort}} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				for _, bufs := range pair {
					first := r.usedIdx()
					from.OK(from.rings[1].Add(bufs, nil, 0))
					from.publish(1)
					from.poll(1, used[:])
					r.post(int(r.usedIdx() - first))
				}
			}
		})
	}
}
