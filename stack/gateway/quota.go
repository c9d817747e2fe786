package gateway

import (
	"net/netip"
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

// quota bounds how much of something there is at one time, in all and for each owner: one guest that wants too much
// leaves some to the others.
type quota struct {
	all, each int
	refused   *atomic.Uint64

	mu sync.Mutex
	n  int
	by map[owner]int // no zeros
}

func newQuota(all, each int, refused *atomic.Uint64) *quota {
	return &quota{all: all, each: each, refused: refused, by: map[owner]int{}}
}

// take takes one; false if there is none for that owner, which counts as refused.
func (q *quota) take(o owner) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.n >= q.all || q.by[o] >= q.each {
		q.refused.Add(1)
		return false
	}
	q.n++
	q.by[o]++
	return true
}

// give gives one back.
func (q *quota) give(o owner) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.n--
	if q.by[o]--; q.by[o] == 0 {
		delete(q.by, o)
	}
}

// taken says how many there are now.
func (q *quota) taken() int64 {
	q.mu.Lock()
	defer q.mu.Unlock()
	return int64(q.n)
}
