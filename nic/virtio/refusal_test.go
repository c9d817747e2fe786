package virtio_test

import (
	"bytes"
	"testing"

	"vnic.dev/vnic/internal/testkit"
	"vnic.dev/vnic/nic/nictest"
	"vnic.dev/vnic/virtq"
	"vnic.dev/vnic/wire"
)

// refusing is a receive ring made by hand into which a test delivers frames. Each chain is an indirect table.
type refusing struct {
	*handRing
	worker *wire.Worker
	longs  uint64 // a table of 64 bytes, and as many empty buffers as there may be
	shorts uint64 // one of a single buffer of 100 bytes
	large  uint64 // and of 16 KiB
}

func newRefusing(w *world, vring int) *refusing {
	g := w.Bad
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
	r.longs, r.shorts, r.large = table(virtq.MaxDescriptors, 64), table(1, 100), table(1, 16<<10)
	for i := range virtq.MaxSize {
		put(r.desc, i, virtq.Buf{Addr: r.longs, Len: 16 * virtq.MaxDescriptors}, vringIndirect, 0)
	}
	return r
}

// post makes n more chains available, of as many descriptors as the table has.
func (r *refusing) post(n int, table uint64) {
	size := uint32(16)
	if table == r.longs {
		size *= virtq.MaxDescriptors
	}
	for range n {
		head := r.entries % virtq.MaxSize
		put(r.desc, int(head), virtq.Buf{Addr: table, Len: size}, vringIndirect, 0)
		r.head(head)
	}
	r.publish()
}

// wants fails the test if a frame gets another verdict.
func (r *refusing) wants(what string, n int, want wire.Verdict) {
	r.g.Helper()
	got := nictest.Deliver(r.g, r.g, r.worker, n)
	if got.Kind != want.Kind || got.Reason != want.Reason {
		r.g.Fatalf("%s, %d bytes: %v, want %v; errors %v", what, n, got, want, r.g.dev.Errors())
	}
}

// unread delivers frames of n bytes and more a thousand times while each chain ends a queue that looks at it.
func (r *refusing) unread(what string, n int, want wire.Verdict) {
	r.g.Helper()
	good := bytes.Clone(r.desc)
	for i := range virtq.MaxSize {
		put(r.desc, i, virtq.Buf{}, vringIndirect|vringNext, 0)
	}
	for i := range 1000 {
		r.wants(what+", again", n+i, want)
	}
	copy(r.desc, good)
}

var (
	taken  = wire.Verdict{Kind: wire.Taken}
	busy   = wire.Verdict{Kind: wire.Busy}
	tooBig = wire.Drop(wire.DropTooBig)
)

// What a frame found that was refused is remembered: no other is looked for in the same chains until something has
// changed that could help it.
//
// Invariant: nic/virtio: A frame that is refused is walked for once, until the ring or the memory changes.
func TestRefusedFramesWalkOnce(t *testing.T) {
	t.Run("not enough", func(t *testing.T) {
		w := newWorld(t)
		r := newRefusing(w, 0)
		r.post(62, r.longs)
		r.wants("not enough", 4000, busy)
		r.unread("not enough", 4000, busy)
		r.wants("one that fits", 10, taken) // takes two
		r.wants("fewer", 4000, busy)
		r.unread("fewer", 3800, busy) // 60 have room for 3840 bytes: 66 of headers, 12 of virtio_net_hdr
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
	t.Run("split", func(t *testing.T) {
		w := newWorld(t)
		nictest.SplitTo(t, w.Bad, 1, 2000)
		r := newRefusing(w, 2)
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
		r := newRefusing(w, 0)
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
		r := newRefusing(w, 0)
		r.post(20, r.longs)
		r.wants("too short", 4000, tooBig)
		r.unread("too short", 4000, tooBig)
		testkit.Equal(t, "chains used", r.usedIdx(), 0)
		w.Moves(t)
	})
	t.Run("other memory", func(t *testing.T) {
		w := newWorld(t)
		r := newRefusing(w, 0)
		r.post(10, r.longs)
		r.wants("not enough", 4000, busy)
		put(r.desc, 0, virtq.Buf{Addr: r.large, Len: 16}, vringIndirect, 0) // no driver may
		r.wants("not enough", 4000, busy)
		w.Bad.pages(1)
		r.wants("another look", 4000, taken)
		w.Moves(t)
	})
	t.Run("another ring", func(t *testing.T) {
		w := newWorld(t)
		r := newRefusing(w, 0)
		r.post(1, r.longs)
		r.wants("not enough", 4000, busy)
		r.restart()
		r.post(1, r.large)
		r.wants("enough", 4000, taken)
		w.Moves(t)
	})
	t.Run("the same place", func(t *testing.T) { // after 2^16 chains
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
					r.post(64, r.shorts)
					r.wants("too short", 8000, tooBig)
				}
			},
		} {
			t.Run(name, func(t *testing.T) {
				w := newWorld(t)
				r := newRefusing(w, 0)
				r.post(1, r.shorts)
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
					r.post(63, r.shorts)
					r.wants("too short", 8000, tooBig)
				}
				for left := 1<<16 - 64; left > 0; left -= min(left, 1<<14) {
					use(r, min(left, 1<<14))
				}
				testkit.Equal(t, "chains used", r.usedIdx(), 0) // 2^16
				r.post(1, r.large)
				r.wants("enough", 8000, taken)
				w.Moves(t)
			})
		}
	})
}

// Chains that are too little for a frame, though it may have no more of them, are returned: each is walked over once.
//
// Invariant: nic/virtio: A frame that is refused is walked for once, until the ring or the memory changes.
func TestChainsThatAreTooLittleAreReturned(t *testing.T) {
	w := newWorld(t)
	r := newRefusing(w, 0)
	const frames = virtq.MaxSize / 64
	r.post(virtq.MaxSize, r.longs)
	for i := range frames {
		r.wants("too little", 8000, tooBig)
		testkit.Equal(t, "chains used", r.usedIdx(), uint16(64*(i+1)))
	}
	for i := range virtq.MaxSize {
		if n := le.Uint32(r.used[8+8*i:]); n != 0 {
			t.Fatalf("used element %d: %d bytes", i, n)
		}
	}
	r.wants("none", 8000, busy)
	r.post(1, r.large)
	r.wants("enough", 8000, taken)
	if e := w.Bad.dev.Errors(); len(e) != 0 {
		t.Errorf("queues ended: %v", e)
	}
	w.Moves(t)
}

// A chain of nearly 4 GiB has room, whatever comes before it.
func TestHugeChainHasRoom(t *testing.T) {
	w := newWorld(t)
	r := newRefusing(w, 0)
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
