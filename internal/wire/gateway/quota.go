package gateway

import (
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
)

// owner is the user for which a quota counts an entry, or a budget its bytes: a port of the switch, or, for forwards,
// a guest whose port is unknown.
type owner struct {
	link uint32     // wire.Link.Serial of the port; 0: unknown
	addr netip.Addr // the guest's address if link is 0, else zero
}

// ownerOf returns the owner of forwards' connections and flows to a guest's address: the port behind which the switch
// finds the MAC of the Host with this address, else the address.
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

// shares is a table whose entries belong to owners. While it is not full, an owner may add any number. When it is
// full, an owner with fewer entries than an equal share may have one of the owner that has most (giver). The callers of
// add apply these rules. The table is also a queue that serves its owners in turn (next).
type shares[T any] struct {
	all  int           // entries of a full table
	n    int           // entries now
	by   map[owner][]T // oldest first; no empty lists
	turn []owner       // the owners with entries, the next one first
}

func newShares[T any](all int) shares[T] { return shares[T]{all: all, by: map[owner][]T{}} }

// giver returns the owner that has to give up an entry to o when the table is full; false: o has its equal share, or no
// owner has more entries than o.
func (s *shares[T]) giver(o owner) (from owner, ok bool) {
	held, owners := len(s.by[o]), len(s.by)
	if held == 0 {
		owners++
	}
	if held >= s.all/owners {
		return from, false
	}
	most := held
	for k, list := range s.by {
		if len(list) > most {
			from, most, ok = k, len(list), true
		}
	}
	return from, ok
}

func (s *shares[T]) add(o owner, v T) {
	if len(s.by[o]) == 0 {
		s.turn = append(s.turn, o)
	}
	s.by[o] = append(s.by[o], v)
	s.n++
}

func (s *shares[T]) remove(o owner, i int) T {
	list := s.by[o]
	v := list[i]
	if len(list) == 1 {
		s.clear(o)
		return v
	}
	s.by[o] = slices.Delete(list, i, i+1)
	s.n--
	return v
}

// next removes and returns the oldest entry of the owner whose turn it is; false: the table is empty.
func (s *shares[T]) next() (v T, ok bool) {
	if s.n == 0 {
		return v, false
	}
	o := s.turn[0]
	v = s.remove(o, 0)
	if len(s.by[o]) > 0 {
		s.turn = append(slices.Delete(s.turn, 0, 1), o)
	}
	return v, true
}

func (s *shares[T]) clear(o owner) []T {
	list := s.by[o]
	if len(list) > 0 {
		delete(s.by, o)
		s.turn = slices.DeleteFunc(s.turn, func(other owner) bool { return other == o })
		s.n -= len(list)
	}
	return list
}

type quota struct {
	refused *atomic.Uint64
	evicted *atomic.Uint64

	mu     sync.Mutex
	shares shares[*entry]
}

// entry is an entry of a quota, until its holder calls give or the quota removes it.
type entry struct {
	q     *quota
	owner owner
	nth   int          // the number of its owner's entries when it was taken, this one included
	end   func()       // ends the connection, flow or question, without waiting; called when the quota removes the entry
	rank  func() int64 // of an owner's entries the one with the lowest rank is evicted; nil: the oldest one
}

func newQuota(all int, c *counters) *quota {
	return &quota{refused: &c.refused, evicted: &c.evicted, shares: newShares[*entry](all)}
}

// take takes an entry for owner o; nil: the quota is full, and no owner has to give up an entry to o (shares.giver).
// The caller gives the entry back by its method give. If the quota removes the entry before, to make room or in endOf,
// the quota calls end.
func (q *quota) take(o owner, end func()) *entry { return q.takeRanked(o, end, nil) }

// takeRanked is take, but if no other owner has to give up an entry to o, o gives up its own entry of the lowest rank,
// if it has entries. If rank is nil, o is refused instead, as by take.
func (q *quota) takeRanked(o owner, end func(), rank func() int64) *entry {
	e := &entry{q: q, owner: o, end: end, rank: rank}
	var old *entry
	q.mu.Lock()
	if q.shares.n >= q.shares.all {
		from, ok := q.shares.giver(o)
		if !ok && rank != nil && len(q.shares.by[o]) > 0 {
			from, ok = o, true
		}
		if !ok {
			q.mu.Unlock()
			q.refused.Add(1)
			return nil
		}
		old = q.shares.remove(from, first(q.shares.by[from]))
	}
	q.shares.add(o, e)
	e.nth = len(q.shares.by[o])
	q.mu.Unlock()
	if old != nil {
		q.evicted.Add(1)
		old.end()
	}
	return e
}

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

func (e *entry) give() {
	e.q.mu.Lock()
	defer e.q.mu.Unlock()
	if i := slices.Index(e.q.shares.by[e.owner], e); i >= 0 {
		e.q.shares.remove(e.owner, i)
	}
}

func (q *quota) endOf(o owner) {
	q.mu.Lock()
	list := q.shares.clear(o)
	q.mu.Unlock()
	for _, e := range list {
		e.end()
	}
}

func (q *quota) taken() int64 {
	q.mu.Lock()
	defer q.mu.Unlock()
	return int64(q.shares.n)
}
