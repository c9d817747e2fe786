package virtio_test

import (
	"bytes"
	"encoding/json"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/dma"
	"vnic.dev/vnic/internal/nic/nictest"
	"vnic.dev/vnic/internal/testkit"
	"vnic.dev/vnic/vhostuser"
	"vnic.dev/vnic/virtq"
)

// handRing is a virtqueue whose memory the test itself writes, so that chains need not be valid.
type handRing struct {
	g                 *suiteGuest
	index             int
	desc, avail, used []byte
	setup             vhostuser.VringSetup
	next, entries     uint16 // next free descriptor; avail.idx
}

const (
	vringNext     = 1 // VRING_DESC_F_NEXT
	vringWrite    = 2
	vringIndirect = 4
)

// handRing replaces vring i by a ring of the largest size.
func (g *suiteGuest) handRing(i int) *handRing {
	g.Helper()
	g.base(i)
	r := &handRing{g: g, index: i}
	var addrs [3]uint64
	addrs[0], r.desc = g.Alloc(16 * virtq.MaxSize)
	addrs[1], r.avail = g.Alloc(6 + 2*virtq.MaxSize)
	addrs[2], r.used = g.Alloc(6 + 8*virtq.MaxSize)
	r.setup = vhostuser.VringSetup{Index: i, Size: virtq.MaxSize, Desc: rawUser + addrs[0], Avail: rawUser + addrs[1],
		Used: rawUser + addrs[2], Kick: g.kicks[i], Call: g.calls[i]}
	r.begin()
	return r
}

func (r *handRing) begin() {
	clear(r.avail)
	clear(r.used)
	r.next, r.entries = 0, 0
	r.g.OK(r.g.front.SetupVring(r.setup))
}

func (r *handRing) restart() {
	r.g.Helper()
	r.g.base(r.index)
	r.begin()
}

func put(table []byte, i int, b virtq.Buf, flags, next uint16) {
	d := table[16*i:][:16]
	le.PutUint64(d[0:], b.Addr)
	le.PutUint32(d[8:], b.Len)
	le.PutUint16(d[12:], flags)
	le.PutUint16(d[14:], next)
}

// chain adds a chain with a descriptor for each of bufs, all with these flags. publish makes it available.
func (r *handRing) chain(flags uint16, bufs ...virtq.Buf) {
	head := r.next
	for i, b := range bufs {
		f := flags
		if i < len(bufs)-1 {
			f |= vringNext
		}
		put(r.desc, int(r.next), b, f, r.next+1)
		r.next++
	}
	r.head(head)
}

func (r *handRing) head(head uint16) {
	le.PutUint16(r.avail[4+2*int(r.entries%virtq.MaxSize):], head)
	r.entries++
}

// publish makes the added chains available, and kicks.
func (r *handRing) publish() {
	le.PutUint16(r.avail[2:], r.entries)
	r.g.kick(r.index)
}

func (r *handRing) usedIdx() uint16 { return le.Uint16(r.used[2:]) }

func repeat(b virtq.Buf, n int) []virtq.Buf { return slices.Repeat([]virtq.Buf{b}, n) }

// pages shares n adjacent regions of guest memory, of a page each, and returns the address of the first one.
func (g *suiteGuest) pages(n int) uint64 {
	g.Helper()
	const first = 1 << 44
	for i := range uint64(n) {
		g.OK(g.front.AddMemory(g.FD, first+i*4096, rawUser+first+i*4096, 4096, rawMem))
	}
	return first
}

// short fails the test if any of the lists' capacities in room is more than dma.KeepSegments.
func short(t *testing.T, what string, room ...int) {
	t.Helper()
	if n := slices.Max(room); n > dma.KeepSegments {
		t.Errorf("%s: room for %d segments is kept", what, n)
	}
}

// Each chain has as many descriptors as possible, and the buffer of each descriptor lies across 500 regions.
//
// Invariant: nic/virtio: No ring makes a sender walk, or a queue hold, more than the descriptors of
// one frame.
func TestMemoryBomb(t *testing.T) {
	for name, vring := range map[string]int{"receive": 0, "transmit": 1} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			const regions = 500
			base := w.Bad.pages(regions)
			r := w.Bad.handRing(vring)
			fault := w.Bad.fault(vring)
			addr, table := w.Bad.Alloc(16 * virtq.MaxDescriptors)
			for i := range virtq.MaxDescriptors {
				flags := uint16(vringWrite * (1 - vring))
				if i < virtq.MaxDescriptors-1 {
					flags |= vringNext
				}
				put(table, i, virtq.Buf{Addr: base, Len: regions * 4096}, flags, uint16(i+1))
			}
			for range 64 {
				r.chain(vringIndirect, virtq.Buf{Addr: addr, Len: uint32(len(table))})
			}
			r.publish()
			if vring == 0 {
				w.A.Send(0, tcp(w.A, w.Bad, 100))
			}
			if e := w.Bad.broken(vring, fault); !strings.Contains(e, dma.ErrScattered.Error()) {
				t.Errorf("queue ended with %q", e)
			}
			w.Bad.dev.EndWorker(0)
			chains, frame := w.Bad.dev.RxLists(0)
			short(t, "receive queue", append(chains, frame)...)
			short(t, "transmit queue", w.Bad.dev.TxLists(0)...)
			w.Moves(t)
		})
	}
}

// Frames in as many descriptors as allowed arrive, and frames of too many bytes do not. Once the transmit queue's
// worker waits for frames, the queue keeps no long segment lists.
//
// Invariant: nic/virtio: No ring makes a sender walk, or a queue hold, more than the descriptors of
// one frame.
func TestLongChainsAreNotKept(t *testing.T) {
	w := newWorld(t)
	w.Bad.dev.EndWorker(0)
	base := w.Bad.pages(400)
	r := w.Bad.handRing(1)
	w.Bad.dev.EndWorker(0)
	const pieces = virtq.MaxDescriptors - 1
	f := tcp(w.Bad, w.A, 8*pieces)
	addr, mem := w.Bad.Alloc(12 + len(f.Header) + 8*pieces)
	copy(mem[12:], f.Bytes())
	bufs := []virtq.Buf{{Addr: addr, Len: uint32(12 + len(f.Header))}}
	for i := range uint64(pieces) {
		bufs = append(bufs, virtq.Buf{Addr: addr + 12 + uint64(len(f.Header)) + 8*i, Len: 8})
	}
	w.A.Post(0, 4)
	for range 4 {
		r.chain(0, bufs...)
	}
	for range 28 { // chains of 4096 segments and 16 MiB
		r.chain(0, repeat(virtq.Buf{Addr: base, Len: 4 * 4096}, virtq.MaxDescriptors)...)
	}
	r.publish()
	for n := 0; n < 32; {
		k, err := w.Bad.dev.Round(0)
		w.Bad.OK(err)
		n += k
	}
	testkit.Equal(t, "chains used", r.usedIdx(), 32)
	for range 4 {
		nictest.Arrives(t, w.A, 0, &f)
	}
	if room := w.Bad.dev.TxLists(0); slices.Min(room) <= dma.KeepSegments {
		t.Errorf("no long lists were made: %d", room)
	}
	w.Bad.OK(w.Bad.dev.Park(0))
	short(t, "asleep", w.Bad.dev.TxLists(0)...)
	w.Moves(t)
}

// nic.Port.Posted looks at a bounded number of buffers of a ring with long chains, and takes no chain.
//
// Invariant: nic/virtio: No ring makes a sender walk, or a queue hold, more than the descriptors of
// one frame.
func TestLookAtLongChains(t *testing.T) {
	w := newWorld(t)
	r := w.Bad.handRing(0)
	addr, _ := w.Bad.Alloc(4096)
	const chains = 30
	for range chains {
		r.chain(vringWrite, repeat(virtq.Buf{Addr: addr, Len: 16}, virtq.MaxDescriptors)...)
	}
	r.publish()
	for range 2 { // the first call takes no chain
		pieces := 0
		w.Bad.Port().Posted(0, func(segs []dma.Segment) { pieces += len(segs) })
		if pieces < 4096 || pieces >= 4096+virtq.MaxDescriptors {
			t.Errorf("it looked at %d pieces of %d", pieces, chains*virtq.MaxDescriptors)
		}
	}
	testkit.Equal(t, "chains used", r.usedIdx(), 0)
	f := tcp(w.A, w.Bad, 100)
	w.A.Send(0, f)
	testkit.Equal(t, "chains used by a frame", r.usedIdx(), 1)
	w.Moves(t)
}

// The chains have about 2^29 descriptors in all. When split is turned off, the device returns the chains without
// reading the descriptors.
//
// Invariant: nic/virtio: No ring makes a sender walk, or a queue hold, more than the descriptors of
// one frame.
func TestSplitOffOverLongChains(t *testing.T) {
	w := newWorld(t)
	r := w.Bad.handRing(2)
	w.Bad.SetSplit(1, true)
	bufs := repeat(virtq.Buf{Addr: 0, Len: 300}, virtq.MaxSize)
	for round := range 3 { // split can be turned on and off again
		w.Bad.SetSplit(1, true)
		r.next, r.entries = 0, 0
		r.chain(vringWrite, bufs...)
		for i := 1; i < virtq.MaxSize; i++ {
			r.head(uint16(i))
		}
		r.entries = uint16((round + 1) * virtq.MaxSize)
		r.publish()
		for n := range 5 {
			testkit.Equal(t, "chains given back in one piece", w.Bad.dev.ReturnRx(1, 10), 10)
			testkit.Equal(t, "chains used", r.usedIdx(), uint16(round*virtq.MaxSize+10*(n+1)))
		}
		w.Bad.SetSplit(1, false)
		testkit.Equal(t, "chains used", r.usedIdx(), uint16((round+1)*virtq.MaxSize))
		for i := range virtq.MaxSize {
			if id, n := le.Uint32(r.used[4+8*i:]), le.Uint32(r.used[8+8*i:]); id != uint32(i) || n != 0 {
				t.Fatalf("used element %d: head %d, %d bytes", i, id, n)
			}
		}
		if e := w.Bad.dev.Errors(); len(e) != 0 {
			t.Errorf("queues ended: %v", e)
		}
	}
	w.Moves(t)
}

// A head outside the ring stops a queue that returns its chains because split is turned off.
func TestSplitOffOverABadRing(t *testing.T) {
	w := newWorld(t)
	w.Bad.SetSplit(1, true)
	r := w.Bad.handRing(2)
	fault := w.Bad.fault(2)
	r.head(5)
	r.head(virtq.MaxSize)
	r.publish()
	w.Bad.SetSplit(1, false)
	if e := w.Bad.broken(2, fault); !strings.Contains(e, "head 32768: avail entry 1: ring of 32768") {
		t.Errorf("queue ended with %q", e)
	}
	testkit.Equal(t, "chains used", r.usedIdx(), 1)
	w.Moves(t)
}

// For a frame that does not fit, a sender walks over a bounded part of a receiver's ring.
//
// Invariant: nic/virtio: No ring makes a sender walk, or a queue hold, more than the descriptors of
// one frame.
func TestSlowWalk(t *testing.T) {
	t.Run("long chains", func(t *testing.T) {
		w := newWorld(t)
		r := w.Bad.handRing(0)
		fault := w.Bad.fault(0)
		empty := append([]virtq.Buf{{Addr: 0, Len: 64}}, repeat(virtq.Buf{}, virtq.MaxDescriptors)...)
		for range 31 {
			r.chain(vringWrite, empty...)
		}
		r.publish()
		w.A.Send(0, tcp(w.A, w.Bad, 8000))
		if e := w.Bad.broken(0, fault); !strings.Contains(e, "head 0: descriptor 1024: a loop, or more than 1024") {
			t.Errorf("queue ended with %q", e)
		}
		w.Moves(t)
	})
	t.Run("many pieces", func(t *testing.T) {
		w := newWorld(t)
		r := w.Bad.handRing(0)
		// A frame of 8000 bytes would need 8 of these chains, and 8192 segments.
		for range 31 {
			r.chain(vringWrite, repeat(virtq.Buf{Addr: 0, Len: 1}, virtq.MaxDescriptors)...)
		}
		r.publish()
		for range 3 {
			w.A.Send(0, tcp(w.A, w.Bad, 8000))
		}
		// For each frame 5 chains are returned: they have 5120 segments, and the first 4 have no more than 4096.
		if n := r.usedIdx(); n != 3*5 || w.Bad.dev.Errors()[0] != "" {
			t.Errorf("%d chains are used, errors %v", n, w.Bad.dev.Errors())
		}
		for i := range 15 {
			testkit.Equal(t, "bytes in a chain that is returned", le.Uint32(r.used[8+8*i:]), 0)
		}
		chains, _ := w.Bad.dev.RxLists(0)
		if n := slices.IndexFunc(chains, func(n int) bool { return n == 0 }); n < 2 || n > 5 {
			t.Errorf("%d chains were looked at", n)
		}
		w.A.Send(0, tcp(w.A, w.Bad, 4000)) // fits into 4 chains
		testkit.Equal(t, "chains used for a frame that fits", r.usedIdx(), 3*5+4)
		w.A.Send(0, tcp(w.A, w.Bad, 10)) // needs one chain: the segment lists of the others are freed
		chains, _ = w.Bad.dev.RxLists(0)
		short(t, "after a short frame", chains[1:]...)
		w.Bad.base(0)
		chains, frame := w.Bad.dev.RxLists(0)
		short(t, "stopped", append(chains, frame)...)
		w.Moves(t)
	})
}

// A guest breaks its queue and sets it up again, as fast as it can.
//
// Invariant: nic: Above level Debug, the rate of log lines that a guest can cause is bounded.
func TestBrokenQueuesDoNotFillTheLog(t *testing.T) {
	var log lockedBuffer
	began := time.Now()
	w := newWorldWith(t, rawOptions{pairs: 1, mtu: 9000, p2p: true, log: slog.New(slog.NewJSONHandler(&log, nil))})
	const breaks = 500
	fault := nictest.EventFD(t)
	r := w.Bad.handRing(1)
	for range breaks {
		w.Bad.OK(w.Bad.front.SetVringErr(1, fault))
		put(r.desc, 0, virtq.Buf{Addr: 0, Len: 100}, 2, 0) // VIRTQ_DESC_F_WRITE
		r.head(0)
		r.publish()
		w.Bad.broken(1, fault)
		var b [8]byte
		_, err := unix.Read(fault, b[:])
		w.Bad.OK(err)
		r.restart()
	}
	w.Moves(t)
	testkit.Eventually(t, "a line", func() bool { // the monitor may log many stops of a queue in one line
		return strings.Contains(log.String(), "queue stopped")
	})
	lines, held := 0, 0
	for text := range strings.Lines(log.String()) {
		var line struct {
			Msg, Queue, Port string
			HeldBack         int
		}
		w.Bad.OK(json.Unmarshal([]byte(text), &line))
		if !strings.Contains(line.Msg, "queue stopped") {
			continue
		}
		if line.Queue != "tx0" || line.Port != "c" {
			t.Errorf("%+v", line)
		}
		lines++
		held += line.HeldBack
	}
	if most := int(time.Since(began)/time.Second) + 1; lines < 1 || lines > most {
		t.Errorf("%d lines, want 1 to %d", lines, most)
	}
	if lines+held > breaks {
		t.Errorf("%d lines, %d held back, of %d", lines, held, breaks)
	}
	t.Logf("%d lines, %d held back", lines, held)
}

type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

// Backlog returns how many frames wait in the ring, and whether the ring is nearly full.
func TestBacklog(t *testing.T) {
	const size = 256
	for _, c := range []struct {
		name    string
		drop    uint64 // features not negotiated
		buffers int    // of each frame
		frames  int
		full    bool
	}{
		{"indirect", 0, 1, 191, false},
		{"indirect, full", 0, 1, 192, true},
		{"no indirect", fIndirect, 2, 95, false},
		{"no indirect, full", fIndirect, 2, 96, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorldWith(t, rawOptions{pairs: 1, mtu: 9000, p2p: true, drop: c.drop})
			r := w.A.handRing(1)
			r.setup.Size = size
			r.restart()
			w.A.dev.EndWorker(0)
			f := tcp(w.A, w.Bad, 1000*(c.buffers-1))
			bufs := w.A.layOut(&f, false)
			testkit.Equal(t, "buffers", len(bufs), c.buffers)
			for range c.frames {
				r.chain(0, bufs...)
			}
			r.publish()
			_, err := w.A.dev.Round(0)
			testkit.OK(t, err)
			frames, full := w.A.dev.Backlog(0)
			testkit.Equal(t, "frames that wait", frames, c.frames-len(w.A.dev.TxLists(0)))
			testkit.Equal(t, "ring is full", full, c.full)
			w.A.dev.EndWorker(0)
		})
	}
}
