package gateway

import (
	"net/netip"
	"sync"
	"sync/atomic"
)

// quota bounds how much of something there is at one time, in all and for each guest address: one
// guest that wants too much leaves some to the others.
type quota struct {
	all, each int
	refused   *atomic.Uint64

	mu sync.Mutex
	n  int
	by map[netip.Addr]int // no zeros
}

func newQuota(all, each int, refused *atomic.Uint64) *quota {
	return &quota{all: all, each: each, refused: refused, by: map[netip.Addr]int{}}
}

// take takes one; false if there is none for that guest, which counts as refused.
func (q *quota) take(guest netip.Addr) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.n >= q.all || q.by[guest] >= q.each {
		q.refused.Add(1)
		return false
	}
	q.n++
	q.by[guest]++
	return true
}

// give gives one back.
func (q *quota) give(guest netip.Addr) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.n--
	if q.by[guest]--; q.by[guest] == 0 {
		delete(q.by, guest)
	}
}

// taken says how many there are now.
func (q *quota) taken() int64 {
	q.mu.Lock()
	defer q.mu.Unlock()
	return int64(q.n)
}
