package gateway

import (
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
)

// owner is who a share belongs to: the port of the switch whose frame asked for it, whatever source address that
// frame had; or, of a forward, the guest that it leads to, where no port is known for that.
type owner struct {
	link uint32 // wire.Link.Serial; 0: addr counts
	addr netip.Addr
}

// ownerOf is the owner of what forwards lead to a guest: its port, as far as the switch knows it, so that a guest has
// one share for what it asks for and what comes to it.
func (g *Gateway) ownerOf(guest netip.Addr) owner {
	for i := range g.o.Hosts {
		h := &g.o.Hosts[i]
		if h.Addr4 != guest && h.Addr6 != guest {
			continue
		}
		if l := g.sw.Find(h.MAC); l != nil {
			return owner{link: l.Serial()}
		}
	}
	return owner{addr: guest}
}

// shares are what several owners have of something of which there is so much at one time. An owner may have all that is
// free. When nothing is free, one with less than its equal part takes one of the owner that has most.
type shares[T any] struct {
	all, n int
	by     map[owner][]T // oldest first; no empty ones
}

func newShares[T any](all int) shares[T] { return shares[T]{all: all, by: map[owner][]T{}} }

// giver is the owner of which o takes one, as nothing is free; false: it takes none.
func (s *shares[T]) giver(o owner) (from owner, ok bool) {
	own, owners := len(s.by[o]), len(s.by)
	if own == 0 {
		owners++
	}
	if own >= s.all/owners {
		return from, false
	}
	most := own
	for k, list := range s.by {
		if len(list) > most {
			from, most, ok = k, len(list), true
		}
	}
	return from, ok
}

// add gives an owner one more.
func (s *shares[T]) add(o owner, v T) {
	s.by[o] = append(s.by[o], v)
	s.n++
}

// remove takes the i-th one of an owner.
func (s *shares[T]) remove(o owner, i int) T {
	list := s.by[o]
	v := list[i]
	if s.n--; len(list) == 1 {
		delete(s.by, o)
		return v
	}
	s.by[o] = slices.Delete(list, i, i+1)
	return v
}

// clear takes all of an owner.
func (s *shares[T]) clear(o owner) []T {
	list := s.by[o]
	delete(s.by, o)
	s.n -= len(list)
	return list
}

// quota bounds how much of something there is at one time, and shares it between owners.
type quota struct {
	refused *atomic.Uint64
	evicted *atomic.Uint64

	mu     sync.Mutex
	shares shares[*entry]
}

// entry is one that is taken, until it is given back or another owner takes it.
type entry struct {
	q     *quota
	owner owner
	nth   int          // of its owner's, as it was taken: from 1 on
	end   func()       // ends what it was taken for, at once and without waiting
	rank  func() int64 // of an owner's entries, that with the least goes first; nil: the oldest
}

func newQuota(all int, c *counters) *quota {
	return &quota{refused: &c.refused, evicted: &c.evicted, shares: newShares[*entry](all)}
}

// take takes one; nil if there is none for that owner, which counts as refused. Who has it gives it back. If it is
// another owner's turn before, end is called, which counts as evicted.
func (q *quota) take(o owner, end func()) *entry {
	return q.add(&entry{q: q, owner: o, end: end}, func() (from owner, ok bool) { return q.shares.giver(o) })
}

// takeRanked is take for what can be ended at any time: where no other owner gives one up, the owner itself does.
func (q *quota) takeRanked(o owner, end func(), rank func() int64) *entry {
	return q.add(&entry{q: q, owner: o, end: end, rank: rank}, func() (from owner, ok bool) {
		if from, ok = q.shares.giver(o); ok {
			return from, true
		}
		return o, len(q.shares.by[o]) > 0
	})
}

// add takes an entry, if need be of the owner that giver says.
func (q *quota) add(e *entry, giver func() (owner, bool)) *entry {
	var old *entry
	q.mu.Lock()
	if q.shares.n >= q.shares.all {
		from, ok := giver()
		if !ok {
			q.mu.Unlock()
			q.refused.Add(1)
			return nil
		}
		old = q.shares.remove(from, first(q.shares.by[from]))
	}
	q.shares.add(e.owner, e)
	e.nth = len(q.shares.by[e.owner])
	q.mu.Unlock()
	if old != nil {
		q.evicted.Add(1)
		old.end()
	}
	return e
}

// first is which of an owner's entries goes first. Its cost is that of a look at each.
func first(list []*entry) (i int) {
	if list[0].rank == nil {
		return 0
	}
	least := list[0].rank()
	for k, e := range list[1:] {
		if r := e.rank(); r < least {
			i, least = k+1, r
		}
	}
	return i
}

// give gives it back, unless another owner has it by now.
func (e *entry) give() {
	e.q.mu.Lock()
	defer e.q.mu.Unlock()
	if i := slices.Index(e.q.shares.by[e.owner], e); i >= 0 {
		e.q.shares.remove(e.owner, i)
	}
}

// endOf ends all that an owner has, and gives it back.
func (q *quota) endOf(o owner) {
	q.mu.Lock()
	list := q.shares.clear(o)
	q.mu.Unlock()
	for _, e := range list {
		e.end()
	}
}

// taken says how many there are now.
func (q *quota) taken() int64 {
	q.mu.Lock()
	defer q.mu.Unlock()
	return int64(q.shares.n)
}
