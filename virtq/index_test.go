package virtq

import (
	"bytes"
	"sync"
	"sync/atomic"
	"testing"
	"vnic.dev/vnic/internal/testkit"
)

func TestFieldIsReadFromEitherHalf(t *testing.T) {
	g := newGuest(t)
	for off := 0; off < 8; off += 2 {
		b := g.ring(ringIOVA)[:16]
		for i := range b {
			b[i] = byte(i)
		}
		f := testkit.Must(fieldAt(b, off))(t)
		if got, want := f.load(), le.Uint16(b[off:]); got != want {
			t.Errorf("at %d: got %#x, want %#x", off, got, want)
		}
	}
}

// Invariant: virtq: Nothing behind a ring is written, also with avail at 2 mod 4.
func TestEventStoreTouchesTwoBytesOnly(t *testing.T) {
	g := newGuest(t)
	for off := 2; off < 10; off += 2 {
		b := g.ring(ringIOVA)[:16]
		for i := range b {
			b[i] = 0xa5
		}
		f := testkit.Must(fieldAt(b, off))(t)
		f.store(0x1234)
		want := bytes.Repeat([]byte{0xa5}, 16)
		le.PutUint16(want[off:], 0x1234)
		if !bytes.Equal(b, want) {
			t.Errorf("at %d: %x", off, b)
		}
	}
}

func TestFieldsOutsideTheirRingAreRefused(t *testing.T) {
	b := newGuest(t).ring(ringIOVA)[:8]
	for _, off := range []int{-2, -1, 1, 3, 7, 8, 9} {
		testkit.ErrorIs(t, testkit.Err(fieldAt(b, off)), ErrBadRing, "field at %d of 8", off)
	}
	for _, b := range [][]byte{nil, b[:3], b[1:], b[2:]} {
		testkit.ErrorIs(t, testkit.Err(headerAt(b)), ErrBadRing, "header of %d bytes", len(b))
	}
}

func TestNeedEvent(t *testing.T) {
	for _, c := range []struct {
		event, now, was uint16
		want            bool
	}{
		{0, 1, 0, true},
		{0, 0, 0, false}, // nothing new
		{1, 1, 0, false},
		{5, 10, 5, true},
		{9, 10, 5, true},
		{10, 10, 5, false},
		{4, 10, 5, false}, // passed long ago
		{0xffff, 0, 0xffff, true},
		{0xfffe, 3, 0xffff, false},
		{2, 3, 0xfffe, true},
		{0x8000, 0x8001, 0x0, true},
		{0x8001, 0x8001, 0x0, false},
	} {
		if got := needEvent(c.event, c.now, c.was); got != c.want {
			t.Errorf("event %#x, %#x to %#x: %v", c.event, c.was, c.now, got)
		}
	}
}

// TestNothingBehindTheRingsIsWritten runs rings, some with the avail ring at 2 mod 4, between canaries.
//
// Invariant: virtq: Nothing behind a ring is written, also with avail at 2 mod 4.
func TestNothingBehindTheRingsIsWritten(t *testing.T) {
	for _, size := range []uint16{1, 2, 4, 8, 256} {
		for _, event := range []bool{false, true} {
			for _, odd := range []uint64{0, 2} {
				g := newGuest(t)
				n := int(size)
				area := g.ring(ringIOVA)[:64<<10]
				for i := range area {
					area[i] = 0xa5
				}
				avail := uint64(ringIOVA+descLen*n+16) + odd
				used := (avail + uint64(availLen(n)) + 16 + 3) &^ 3
				c := Config{Size: size, Desc: ringIOVA, Avail: avail, Used: used, EventIdx: event}
				outside := make([]bool, len(area))
				for i := range outside {
					iova := uint64(ringIOVA + i)
					in := func(part uint64, l int) bool { return iova >= part && iova-part < uint64(l) }
					outside[i] = !in(c.Desc, descLen*n) && !in(c.Avail, availLen(n)) && !in(c.Used, usedLen(n))
					if !outside[i] {
						area[i] = 0
					}
				}
				rounds := 2 + (1<<16)/n // more than 65536 chains, so that the indices wrap; not with -race
				if raceEnabled {
					rounds = 2 + 1000/n
				}
				g.roundTrips(t, c, rounds)
				for i, b := range area {
					if outside[i] && b != 0xa5 {
						t.Fatalf("size %d, event %v: byte %#x is %#x; avail %#x+%#x, used %#x+%#x", size, event,
							i, b, avail-ringIOVA, availLen(n), used-ringIOVA, usedLen(n))
					}
				}
			}
		}
	}
}

func (g *guest) roundTrips(t *testing.T, c Config, n int) {
	t.Helper()
	dr := newPlain(t, g, c)
	dev := testkit.Must(NewDevice(g.space, c))(t)
	defer dev.Close()
	var chain Chain
	for round := range n {
		if dr.enableCall() {
			t.Fatalf("round %d: something used already", round)
		}
		if dev.EnableKick() {
			t.Fatalf("round %d: something available already", round)
		}
		if !dr.add(int(c.Size)) {
			t.Fatalf("round %d: no kick, though asked for", round)
		}
		dev.DisableKick()
		tok := g.space.Enter()
		for range c.Size {
			peek(t, dev, &chain)
			dev.Commit(chain.Head, 0)
		}
		g.space.Leave(tok)
		if !dev.Publish() {
			t.Fatalf("round %d: no call, though asked for", round)
		}
		dr.disableCall()
		if got := dr.poll(); got != int(c.Size) {
			t.Fatalf("round %d: %d of %d came back", round, got, c.Size)
		}
	}
}

// plain is a driver for rings that lie otherwise than Layout places them.
type plain struct {
	conf                           Config
	flags, idx, event              field // avail
	usedFlags, usedIdx, availEvent field
	added, polled                  uint16
	fence                          fence
}

func newPlain(t *testing.T, g *guest, c Config) *plain {
	t.Helper()
	p := &plain{conf: c}
	n := int(c.Size)
	avail, used := g.ring(c.Avail)[:availLen(n)], g.ring(c.Used)[:usedLen(n)]
	testkit.OK(t, fields(
		fieldPlace{&p.flags, avail, 0},
		fieldPlace{&p.idx, avail, 2},
		fieldPlace{&p.event, avail, len(avail) - 2},
		fieldPlace{&p.usedFlags, used, 0},
		fieldPlace{&p.usedIdx, used, 2},
		fieldPlace{&p.availEvent, used, len(used) - 2}))
	for i := range n {
		le.PutUint16(avail[4+2*i:], uint16(i))
	}
	return p
}

// free returns how many chains can be added.
func (p *plain) free() int { return int(p.conf.Size - (p.added - p.polled)) }

func (p *plain) add(n int) (kick bool) {
	was := p.added
	p.added += uint16(n)
	p.idx.store(p.added) // entries never change; otherwise this store would have to release on arm64
	p.fence.full()
	if p.conf.EventIdx {
		return needEvent(p.availEvent.load(), p.added, was)
	}
	return p.usedFlags.load()&usedNoNotify == 0
}

func (p *plain) poll() int {
	idx := p.usedIdx.load()
	n := idx - p.polled
	p.polled = idx
	return int(n)
}

func (p *plain) disableCall() {
	if p.conf.EventIdx {
		p.event.store(p.polled - 1)
	} else {
		p.flags.store(availNoInterrupt)
	}
}

func (p *plain) enableCall() (more bool) {
	if p.conf.EventIdx {
		p.event.store(p.polled)
	} else {
		p.flags.store(0)
	}
	p.fence.full()
	return p.usedIdx.load() != p.polled
}

// TestEventStoreDoesNotUndoItsNeighbour: another thread owns the two bytes behind a ring.
func TestEventStoreDoesNotUndoItsNeighbour(t *testing.T) {
	b := newGuest(t).ring(ringIOVA)
	event := testkit.Must(fieldAt(b, 0))(t)
	neighbour := testkit.Must(fieldAt(b, 2))(t)
	var stop atomic.Bool
	var wg sync.WaitGroup
	started := make(chan struct{})
	wg.Go(func() {
		close(started)
		for i := uint16(0); !stop.Load(); i++ {
			event.store(i)
		}
	})
	<-started
	var f fence
	rounds := 3_000_000
	if raceEnabled {
		rounds = 300_000
	}
	for i := range rounds {
		neighbour.store(uint16(i))
		f.full() // drains the store buffer, from which the load would otherwise be served
		if got := neighbour.load(); got != uint16(i) {
			t.Errorf("%d became %d", uint16(i), got)
			break
		}
	}
	stop.Store(true)
	wg.Wait()
}

// TestStoreComesBeforeLoad: of two ends that store their own index and then load the other's, at least one must
// see the other's store.
//
// Invariant: virtq: No wake-up is lost.
func TestStoreComesBeforeLoad(t *testing.T) {
	const rounds = 60_000
	for _, c := range []struct {
		name  string
		store func(b []byte) func(v uint16)
	}{
		{"index", func(b []byte) func(uint16) {
			h := testkit.Must(headerAt(b))(t)
			return func(v uint16) { h.store(0, v) }
		}},
		{"event", func(b []byte) func(uint16) {
			f, full := testkit.Must(fieldAt(b, 2))(t), &fence{}
			return func(v uint16) { f.store(v); full.full() }
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			mem := newGuest(t).ring(ringIOVA)
			words := [2][]byte{mem[:4], mem[256:260]}
			var saw [2][rounds + 2]uint16 // the other end's index, as loaded after each own store
			var wg sync.WaitGroup
			for me := range 2 {
				store, other := c.store(words[me]), testkit.Must(fieldAt(words[1-me], 2))(t)
				wg.Go(func() {
					for i := uint16(1); i <= rounds; i++ {
						store(i)
						saw[me][i] = other.load()
					}
				})
			}
			wg.Wait()
			for i := uint16(1); i <= rounds; i++ {
				// The load of end 0 after its store of i did not see next, so end 1, once it had stored next, must see i.
				if next := saw[0][i] + 1; next <= rounds && saw[1][next] < i {
					t.Fatalf("one stored %d and saw %d, the other stored %d and saw %d", i, next-1, next, saw[1][next])
				}
			}
		})
	}
}
