package virtq

import (
	"slices"
	"testing"

	"vnic.dev/vnic/dma"
	"vnic.dev/vnic/internal/testkit"
)

// fakePacked is a ring of another format, like a packed one (virtio 1.3, 2.8).
type fakePacked struct {
	slots   []fakeSlot
	used    pos
	taken   map[uint16]int // how many slots a taken chain has, by id
	segment dma.Segment
	kicks   bool
	repins  int
	back    []fakeUsed
}

type fakeSlot struct {
	id    uint16
	n     int // slots of the chain that begins here
	there pos // where it was made available, wrap counter included, with bit 31 set; 0: it is not
}

type fakeUsed struct {
	pos     pos
	id      uint16
	written uint32
}

const (
	fakeWrap  = 1 << 15
	fakeStart = fakeWrap // index 0; the wrap counter starts at 1
)

func (r *fakePacked) behind(p pos, n int) pos {
	i := int(p&(fakeWrap-1)) + n
	if i >= len(r.slots) {
		i -= len(r.slots)
		p ^= fakeWrap
	}
	return p&fakeWrap | pos(i)
}

func (r *fakePacked) slot(p pos) *fakeSlot { return &r.slots[p&(fakeWrap-1)] }

func (r *fakePacked) offer(p pos, id uint16, n int) (next pos) {
	*r.slot(p) = fakeSlot{id, n, p | 1<<31}
	return r.behind(p, n)
}

func (r *fakePacked) repin() (deviceRing, error) {
	r.repins++
	return r, nil
}
func (r *fakePacked) close() {}

func (r *fakePacked) start(b Base) (first pos, resumed bool) {
	r.used = pos(b.state >> 16)
	return pos(b.state & 0xffff), b.state != fakeStart<<16|fakeStart
}

func (r *fakePacked) base(next pos) Base { return Base{uint32(r.used)<<16 | uint32(next)} }

func (r *fakePacked) available(next pos, out int) (n int, err error) {
	if r.pending(next) {
		return 1, nil
	}
	return 0, nil
}

func (r *fakePacked) pending(next pos) bool { return r.slot(next).there == next|1<<31 }

func (r *fakePacked) take(p pos, c *Chain) (next pos, err error) {
	s := r.slot(p)
	if int(s.id) >= len(r.slots) {
		return p, bad(s.id, "id of a ring of %d", len(r.slots))
	}
	if _, twice := r.taken[s.id]; !twice { // if it was taken before, the Device reports the error
		r.taken[s.id] = s.n
	}
	return r.behind(p, s.n), r.load(s.id, c)
}

func (r *fakePacked) head(p pos) (next pos, head uint16, err error) {
	s := r.slot(p)
	if int(s.id) >= len(r.slots) {
		return p, s.id, bad(s.id, "id of a ring of %d", len(r.slots))
	}
	if _, twice := r.taken[s.id]; !twice {
		r.taken[s.id] = s.n
	}
	return r.behind(p, s.n), s.id, nil
}

func (r *fakePacked) load(id uint16, c *Chain) error {
	c.Head, c.Out, c.In = id, append(c.Out[:0], r.segment), nil
	c.OutLen, c.InLen, c.InFirst = r.segment.Len, 0, 0
	return nil
}

func (r *fakePacked) publish(es []usedElement) (call bool) {
	for _, e := range es {
		id := uint16(e)
		r.back = append(r.back, fakeUsed{r.used, id, uint32(e >> 32)})
		for range r.taken[id] {
			r.slot(r.used).there = 0
			r.used = r.behind(r.used, 1)
		}
		delete(r.taken, id)
	}
	return true
}

func (r *fakePacked) disableKick(pos) { r.kicks = false }

// enableKick asks for a kick at each chain, whatever n is, and reports whether more than n are available.
func (r *fakePacked) enableKick(next pos, n int) (more bool) {
	r.kicks = true
	for i := 0; r.pending(next); i++ {
		if i == n {
			return true
		}
		next = r.behind(next, r.slot(next).n)
	}
	return false
}

func newFakePacked() *fakePacked {
	return &fakePacked{slots: make([]fakeSlot, 12), taken: make(map[uint16]int),
		segment: dma.NewBuffer(make([]byte, 4), dma.Host).Segment(0, 4)}
}

// TestRingOfAnotherFormat runs a Device on a ring without avail.idx and used.idx.
func TestRingOfAnotherFormat(t *testing.T) {
	g := newGuest(t)
	r := newFakePacked()
	conf := Config{Size: 12, Base: BaseOf(fakeStart<<16 | fakeStart)}
	q, err := newDevice(g.space, conf, r)
	testkit.OK(t, err)
	if q.Resumed() || q.Base() != conf.Base || !r.kicks {
		t.Fatalf("resumed: %t, base %#x, kicks: %t", q.Resumed(), q.Base().State(), r.kicks)
	}
	tail := pos(fakeStart)
	var c Chain
	check := func(what string, ok bool) {
		t.Helper()
		if !ok {
			t.Fatalf("not so: %s; head %d, %d held, %v", what, c.Head, q.Held(), q.Err())
		}
	}
	peeks := func(want uint16) {
		t.Helper()
		peek(t, q, &c)
		check("the chain is the next one", c.Head == want && c.OutLen == 4)
	}
	empty := func() {
		t.Helper()
		ok, err := q.Peek(&c)
		check("the ring is empty", !ok && err == nil && !q.Pending())
	}
	for round := range 40 { // each goes once around the ring
		empty()
		check("no more than nothing", !q.EnableKick())
		ids := [3]uint16{uint16(round) % 12, uint16(round+5) % 12, uint16(round+3) % 12}
		first := tail
		for i, id := range ids {
			tail = r.offer(tail, id, 1<<i)
		}
		check("3 chains", q.Pending() && q.EnableKick() && q.EnableKickBeyond(2) && !q.EnableKickBeyond(3))
		peeks(ids[0])
		peeks(ids[1])
		check("one more", !q.EnableKickBeyond(1) && q.EnableKickBeyond(0))
		check("none is put back from under another", !q.PutBack(ids[0]) && q.Held() == 2 && q.Err() == nil)
		check("the last is put back", q.PutBack(ids[1]) && q.Held() == 1)
		check("both are put back to where they were", q.PutBack(ids[0]) && q.Held() == 0 && q.next == first)
		for _, id := range ids {
			peeks(id)
		}
		empty()
		q.Rewind(2)
		peeks(ids[1])
		peeks(ids[2])
		q.Commit(ids[2], 7)
		check("none is put back from under one that is committed", q.Held() == 2 && !q.PutBack(ids[1]))
		q.Commit(ids[0], 8)
		used := r.used
		check("call", q.Publish() && q.Held() == 1)
		check("loaded", q.Load(ids[1], &c) == nil && c.Head == ids[1])
		q.Commit(ids[1], 9)
		q.Publish()
		want := []fakeUsed{{used, ids[2], 7}, {r.behind(used, 4), ids[0], 8}, {r.behind(used, 5), ids[1], 9}}
		if !slices.Equal(r.back, want) || r.used != tail || q.Base() != r.base(tail) {
			t.Fatalf("round %d: returned %v, want %v; base %#x", round, r.back, want, q.Base().State())
		}
		r.back, used = nil, tail
		tail = r.offer(r.offer(tail, ids[0], 2), ids[1], 3)
		returned := testkit.Must(q.ReturnUnused(12))(t)
		check("those that are there are returned, unused", returned == 2 && q.Held() == 0 && q.Publish() &&
			slices.Equal(r.back, []fakeUsed{{used, ids[0], 0}, {r.behind(used, 2), ids[1], 0}}) && r.used == tail)
		r.back = nil
		if round%7 == 3 {
			conf.Base = BaseOf(q.Base().State())
			q.Close()
			if q, err = newDevice(g.space, conf, r); err != nil ||
				q.Resumed() == (conf.Base.State() == fakeStart<<16|fakeStart) {
				t.Fatalf("base %#x: %v", conf.Base.State(), err)
			}
		}
		check("pinned again", q.Repin() == nil && r.repins > 0)
	}
	r.offer(r.offer(tail, 3, 1), 3, 1)
	peeks(3)
	testkit.ErrorIs(t, testkit.Err(q.Peek(&c)), ErrBadChain, "an id that is in use")
}
