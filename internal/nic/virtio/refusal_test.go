package virtio_test

import (
	"bytes"
	"testing"

	"vnic.dev/vnic/dma"
	"vnic.dev/vnic/internal/nic"
	"vnic.dev/vnic/internal/nic/nictest"
	"vnic.dev/vnic/internal/testkit"
	"vnic.dev/vnic/internal/wire"
	"vnic.dev/vnic/virtq"
)

// refusing is a receive ring whose memory the test itself writes. Each chain is an indirect table. longs, shorts and
// large are the addresses of tables.
type refusing struct {
	*handRing
	worker *wire.Worker
	longs  uint64 // a buffer of 64 bytes and 64 empty ones; a frame may use 64 such tables
	shorts uint64 // a buffer of 100 bytes
	large  uint64 // a buffer of 16 KiB
}

// long is the number of descriptors in longs: 63 such tables have 4095, and for one frame the device takes no further
// chain when it has more than 4096.
const long = 65

func newRefusing(g *suiteGuest, vring int) *refusing {
	r := &refusing{handRing: g.handRing(vring), worker: wire.NewWorker()}
	buf, _ := g.Alloc(16 << 10)
	table := func(n int, size uint32) uint64 {
		addr, b := g.Alloc(16 * n)
		put(b, 0, virtq.Buf{Addr: buf, Len: size}, vringWrite|vringNext, 1)
		for i := 1; i < n; i++ {
			put(b, i, virtq.Buf{}, vringWrite|vringNext, uint16(i+1))
		}
		b[16*n-4] = vringWrite
		return addr
	}
	r.longs, r.shorts, r.large = table(long, 64), table(1, 100), table(1, 16<<10)
	for i := range virtq.MaxSize {
		put(r.desc, i, virtq.Buf{Addr: r.longs, Len: 16 * long}, vringIndirect, 0)
	}
	return r
}

func (r *refusing) post(n int, table uint64) {
	size := uint32(16)
	if table == r.longs {
		size *= long
	}
	for range n {
		head := r.entries % virtq.MaxSize
		put(r.desc, int(head), virtq.Buf{Addr: table, Len: size}, vringIndirect, 0)
		r.head(head)
	}
	r.publish()
}

func (r *refusing) wants(what string, n int, want wire.Verdict) {
	r.g.Helper()
	got := nictest.Deliver(r.g, r.g, r.worker, n)
	if got.Kind != want.Kind || got.Reason != want.Reason {
		r.g.Fatalf("%s, %d bytes: %v, want %v; errors %v", what, n, got, want, r.g.dev.Errors())
	}
}

// unreadDuring calls f a thousand times while all chains are invalid: a queue that reads one stops.
func (r *refusing) unreadDuring(f func()) {
	good := bytes.Clone(r.desc)
	for i := range virtq.MaxSize {
		put(r.desc, i, virtq.Buf{}, vringIndirect|vringNext, 0)
	}
	for range 1000 {
		f()
	}
	copy(r.desc, good)
}

// unread fails the test if the queue reads a chain for any of a thousand frames with n bytes of payload and more, or if
// a frame's Verdict is another than want.
func (r *refusing) unread(what string, n int, want wire.Verdict) {
	r.g.Helper()
	i := -1
	r.unreadDuring(func() {
		i++
		r.wants(what+", again", n+i, want)
	})
}

var (
	taken  = wire.Verdict{Kind: wire.Taken}
	busy   = wire.Verdict{Kind: wire.Busy}
	tooBig = wire.Drop(wire.DropTooBig)
)

// Invariant: nic/virtio: A receive queue walks its ring once for a refused frame, until the ring or
// the memory changes.
func TestRefusedFramesWalkOnce(t *testing.T) {
	t.Run("not enough", func(t *testing.T) {
		w := newWorld(t)
		r := newRefusing(w.Bad, 0)
		r.post(62, r.longs)
		r.wants("not enough", 4000, busy)
		r.unread("not enough", 4000, busy)
		r.wants("one that fits", 10, taken)
		r.wants("fewer", 4000, busy)
		r.unread("fewer", 3800, busy) // 60 chains are left, for 3840 bytes, headers and virtio_net_hdr included
		r.wants("exactly", 3840-66-12, taken)
		testkit.Equal(t, "chains used", r.usedIdx(), 62)
		r.post(10, r.longs)
		r.wants("10 chains", 4000, busy)
		r.unread("10 chains", 4000, busy)
		r.post(1, r.large)
		r.wants("enough", 4000, taken)
		testkit.Equal(t, "chains used", r.usedIdx(), 73)
		w.Moves(t)
	})
	t.Run("merged", func(t *testing.T) {
		w := newWorld(t)
		r := newRefusing(w.Bad, 0)
		r.post(30, r.longs) // room for 1920 bytes
		flow := func() {
			for i, v := range nictest.DeliverFlow(t, w.Bad, r.worker, 3, 2000) {
				if v.Kind != wire.Busy {
					t.Fatalf("frame %d: %v; errors %v", i, v, w.Bad.dev.Errors())
				}
			}
		}
		flow()
		r.unreadDuring(flow)
		r.post(70, r.longs) // now there is room for each frame; all in one packet would need more than 64 chains
		for i, v := range nictest.DeliverFlow(t, w.Bad, r.worker, 3, 2000) {
			if v.Kind != wire.Taken {
				t.Errorf("frame %d: %v; errors %v", i, v, w.Bad.dev.Errors())
			}
		}
		testkit.Equal(t, "chains used", r.usedIdx(), 3*33)
		w.Moves(t)
	})
	t.Run("split", func(t *testing.T) {
		w := newWorld(t)
		nictest.SplitTo(t, w.Bad, 1, 2000)
		r := newRefusing(w.Bad, 2)
		heads, table := w.Bad.Alloc(32)
		payload, _ := w.Bad.Alloc(4096)
		put(table, 0, virtq.Buf{Addr: payload, Len: 300}, vringWrite|vringNext, 1)
		put(table, 1, virtq.Buf{Addr: payload, Len: 100}, vringWrite, 0)
		for i := range uint16(30) {
			put(r.desc, int(i), virtq.Buf{Addr: heads, Len: 32}, vringIndirect, 0)
			r.head(i)
		}
		r.publish()
		r.wants("not enough", 3001, busy)
		r.unread("not enough", 3001, busy)
		r.wants("enough", 3000, taken)
		testkit.Equal(t, "chains used", r.usedIdx(), 30)
		w.Moves(t)
	})
	t.Run("whole ring", func(t *testing.T) {
		w := newWorld(t)
		r := newRefusing(w.Bad, 0)
		r.setup.Size = 32
		r.restart()
		r.post(32, r.shorts)
		r.wants("too little", 4000, tooBig)
		r.unread("too little", 4000, tooBig)
		r.wants("one that fits", 10, taken)
		w.Moves(t)
	})
	t.Run("one chain for each frame", func(t *testing.T) {
		w := newWorldWith(t, rawOptions{pairs: 3, mtu: 9000, p2p: true, drop: fMrg})
		r := newRefusing(w.Bad, 0)
		r.post(20, r.longs)
		r.wants("too short", 4000, tooBig)
		r.unread("too short", 4000, tooBig)
		testkit.Equal(t, "chains used", r.usedIdx(), 0)
		w.Moves(t)
	})
	t.Run("other memory", func(t *testing.T) {
		w := newWorld(t)
		r := newRefusing(w.Bad, 0)
		r.post(10, r.longs)
		r.wants("not enough", 4000, busy)
		put(r.desc, 0, virtq.Buf{Addr: r.large, Len: 16}, vringIndirect, 0)
		r.wants("not enough", 4000, busy)
		w.Bad.pages(1)
		r.wants("another look", 4000, taken)
		w.Moves(t)
	})
	t.Run("another ring", func(t *testing.T) {
		w := newWorld(t)
		r := newRefusing(w.Bad, 0)
		r.post(1, r.longs)
		r.wants("not enough", 4000, busy)
		r.restart()
		r.post(1, r.large)
		r.wants("enough", 4000, taken)
		w.Moves(t)
	})
	t.Run("the same place", func(t *testing.T) { // the ring's indexes are the same again after 2^16 chains
		for name, use := range map[string]func(r *refusing, n int){
			"taken": func(r *refusing, n int) {
				for range n {
					r.post(1, r.large)
					r.wants("short", 10, taken)
				}
			},
			"returned": func(r *refusing, n int) {
				r.post(n, r.shorts)
				testkit.Equal(t, "returned", r.g.dev.ReturnRx(0, n), n)
			},
			"given up": func(r *refusing, n int) {
				for ; n > 0; n -= 64 {
					r.post(64, r.longs)
					r.wants("too short", 8000, tooBig)
				}
			},
		} {
			t.Run(name, func(t *testing.T) {
				w := newWorld(t)
				r := newRefusing(w.Bad, 0)
				first := r.shorts
				if name == "given up" {
					first = r.longs
				}
				r.post(1, first)
				r.wants("not enough", 8000, busy)
				switch name {
				case "taken":
					r.wants("short", 10, taken)
					r.post(63, r.large)
					for range 63 {
						r.wants("short", 10, taken)
					}
				case "returned":
					r.post(63, r.shorts)
					testkit.Equal(t, "returned", r.g.dev.ReturnRx(0, 64), 64)
				case "given up":
					r.post(63, r.longs)
					r.wants("too short", 8000, tooBig)
				}
				for left := 1<<16 - 64; left > 0; left -= min(left, 1<<14) {
					use(r, min(left, 1<<14))
				}
				testkit.Equal(t, "chains used", r.usedIdx(), 0) // 2^16 chains: used.idx has wrapped
				r.post(1, r.large)
				r.wants("enough", 8000, taken)
				w.Moves(t)
			})
		}
	})
}

// Invariant: nic/virtio: A receive queue walks its ring once for a refused frame, until the ring or
// the memory changes.
func TestChainsThatAreTooLittleAreReturned(t *testing.T) {
	for _, c := range []struct {
		name   string
		descs  int
		pieces int // of the descriptors, how many are buffers of one byte; the first has 64, and the rest are empty
		each   int // chains that are returned for each frame; the comments below count their descriptors
	}{
		{"64 chains", long, 0, 64},                       // 4095 before the last chain
		{"many descriptors", virtq.MaxDescriptors, 0, 5}, // 4096 in 4 of them
		{"a few more", 64, 0, 65},                        // 4096 before the last chain
		{"too many for one more", 67, 0, 62},             // 4154
		{"many segments", virtq.MaxDescriptors, virtq.MaxDescriptors - 1, 5},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t)
			r := newRefusing(w.Bad, 0)
			addr, table := w.Bad.Alloc(16 * c.descs)
			buf, _ := w.Bad.Alloc(64)
			for i := range c.descs {
				b := virtq.Buf{Addr: buf}
				switch {
				case i == 0:
					b.Len = 64
				case i <= c.pieces:
					b.Len = 1
				}
				put(table, i, b, vringWrite|vringNext, uint16(i+1))
			}
			table[16*c.descs-4] = vringWrite
			for i := range virtq.MaxSize {
				put(r.desc, i, virtq.Buf{Addr: addr, Len: uint32(16 * c.descs)}, vringIndirect, 0)
				r.head(uint16(i))
			}
			r.publish()
			frames := virtq.MaxSize / c.each
			for i := range frames {
				r.wants("too little", 8000, tooBig)
				testkit.Equal(t, "chains used", r.usedIdx(), uint16(c.each*(i+1)))
			}
			for i := range frames * c.each {
				if n := le.Uint32(r.used[8+8*i:]); n != 0 {
					t.Fatalf("used element %d: %d bytes", i, n)
				}
			}
			if left := virtq.MaxSize - frames*c.each; left > 0 {
				testkit.Equal(t, "chains that are left", w.Bad.dev.ReturnRx(0, virtq.MaxSize), left)
			}
			r.wants("none", 8000, busy)
			r.post(1, r.large)
			r.wants("enough", 8000, taken)
			if e := w.Bad.dev.Errors(); len(e) != 0 {
				t.Errorf("queues ended: %v", e)
			}
			w.Moves(t)
		})
	}
}

// A chain of nearly 4 GiB has room, also behind another chain.
func TestHugeChainHasRoom(t *testing.T) {
	w := newWorld(t)
	r := newRefusing(w.Bad, 0)
	r.post(1, r.shorts)
	addr, table := w.Bad.Alloc(16 * 256)
	for i := range 256 { // 2^32 - 64 bytes
		n := uint32(16 << 20)
		if i == 255 {
			n -= 64
		}
		put(table, i, virtq.Buf{Addr: 0, Len: n}, vringWrite|vringNext, uint16(i+1))
	}
	table[16*256-4] = vringWrite
	buf, _ := w.Bad.Alloc(16 << 10)
	put(table, 0, virtq.Buf{Addr: buf, Len: 16 << 20}, vringWrite|vringNext, 1)
	put(r.desc, 1, virtq.Buf{Addr: addr, Len: 16 * 256}, vringIndirect, 0)
	r.head(1)
	r.publish()
	r.wants("enough", 8000, taken)
	testkit.Equal(t, "chains used", r.usedIdx(), 2)
	w.Moves(t)
}

func BenchmarkManyChains(b *testing.B) {
	for _, c := range []struct {
		name   string
		size   uint32
		n      int // bytes of payload
		chains int
		want   wire.Verdict
	}{
		{"64 KiB in 1 KiB", 1024, 65000, 64, taken}, {"64 KiB in 512", 512, 65000, 128, taken},
		{"64 KiB in 128", 128, 65000, 509, taken}, {"64 KiB in 64", 64, 65000, 1017, taken},
		{"64 KiB in 60", 60, 65000, 1025, tooBig}, {"too little", 12, 65000, 1025, tooBig},
	} {
		b.Run(c.name, func(b *testing.B) {
			files, sw := nictest.Switch(b)
			g := newSuiteGuest(b, files, sw, 0, rawOptions{pairs: 1, mtu: 9000, p2p: true})
			r := newRefusing(g, 0)
			const tables = 4500
			addr, mem := g.Alloc(tables * 4096)
			for i := range virtq.MaxSize {
				k := i * 2741 % tables * 4096
				put(mem[k:], 0, virtq.Buf{Addr: addr + uint64(k) + 1024, Len: c.size}, vringWrite, 0)
				put(r.desc, i, virtq.Buf{Addr: addr + uint64(k), Len: 16}, vringIndirect, 0)
				le.PutUint16(r.avail[4+2*i:], uint16(i))
			}
			r.publish()
			frame := tcp(g, g, c.n)
			from := dma.NewBuffer(frame.Bytes(), dma.Host).Segment(0, uint32(len(frame.Bytes())))
			batch := []*wire.Packet{new(wire.Packet)}
			g.OK(nic.ParseFrame(r.worker.Copier, []dma.Segment{from}, 0, from.Len, make([]byte, nic.MaxHeader), batch[0]))
			batch[0].Prepare()
			for b.Loop() {
				r.entries += uint16(c.chains)
				le.PutUint16(r.avail[2:], r.entries)
				if g.Port().Deliver(r.worker, batch); batch[0].Verdict.Reason != c.want.Reason {
					b.Fatal(batch[0].Verdict, g.dev.Errors())
				}
			}
		})
	}
}

func BenchmarkRefused(b *testing.B) {
	for _, c := range []struct {
		name    string
		buffers int // how many descriptors of a chain have buffers of one byte (the first: 12); the others are empty
		post    int
	}{{"empty buffers", 1, 4}, {"too little, empty buffers", 1, 5}, {"too little, some pieces", 64, 5},
		{"too little, most pieces", virtq.MaxDescriptors, 5}} {
		b.Run(c.name, func(b *testing.B) {
			files, sw := nictest.Switch(b)
			g := newSuiteGuest(b, files, sw, 0, rawOptions{pairs: 1, mtu: 9000, p2p: true})
			r := newRefusing(g, 0)
			addr, table := g.Alloc(16 * virtq.MaxDescriptors)
			for i := range virtq.MaxDescriptors {
				size := uint32(0)
				if i < c.buffers {
					size = 1
				}
				if i == 0 {
					size = 12
				}
				put(table, i, virtq.Buf{Addr: addr, Len: size}, vringWrite|vringNext, uint16(i+1))
			}
			table[16*virtq.MaxDescriptors-4] = vringWrite
			for i := range virtq.MaxSize {
				put(r.desc, i, virtq.Buf{Addr: addr, Len: 16 * virtq.MaxDescriptors}, vringIndirect, 0)
				le.PutUint16(r.avail[4+2*i:], uint16(i))
			}
			r.publish()
			for b.Loop() {
				r.entries += uint16(c.post)
				le.PutUint16(r.avail[2:], r.entries)
				want := tooBig
				if c.post == 4 {
					want = busy
				}
				r.wants("refused", 8900, want)
				if c.post == 4 {
					testkit.Equal(b, "returned", g.dev.ReturnRx(0, c.post), c.post)
				}
			}
		})
	}
}
