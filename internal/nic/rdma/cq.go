package rdma

import (
	"fmt"
	"sync"
	"syscall"

	"vnic.dev/vnic/internal/control"
)

// cq is a completion queue. A goroutine that holds its mu takes no other lock.
type cq struct {
	id    uint32
	users int // number of send and receive queues of queue pairs that use it; under the engine's mu

	mu       sync.Mutex
	ring     []control.WC
	first, n int
	reserved int  // slots taken by posted work requests and by completions in the ring
	armed    bool // the next completion makes a notice to the driver
}

// reserve reserves n slots; false: too few are free.
func (c *cq) reserve(n int) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if n > len(c.ring)-c.reserved {
		return false
	}
	c.reserved += n
	return true
}

func (c *cq) release(n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.reserved -= n
}

// put adds a completion in a reserved slot, and reports whether to notify the driver.
func (c *cq) put(w control.WC) (tell bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ring[(c.first+c.n)%len(c.ring)] = w
	c.n++
	tell, c.armed = c.armed, false
	return tell
}

// AddCQ implements control.RDMA.
func (e *Engine) AddCQ(depth uint32) (uint32, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	switch {
	case depth == 0 || depth > MaxDepth:
		return 0, fmt.Errorf("cq: %d places, not 1 to %d: %w", depth, MaxDepth, syscall.EINVAL)
	case len(e.cqs) == MaxCQs || int(depth) > MaxPlaces-e.taken:
		return 0, fmt.Errorf("cq: there are %d, of at most %d, and %d places are taken of %d: %w", len(e.cqs), MaxCQs,
			e.taken, MaxPlaces, syscall.ENOSPC)
	}
	e.lastID++
	e.cqs[e.lastID] = &cq{id: e.lastID, ring: make([]control.WC, depth), armed: true}
	e.taken += int(depth)
	return e.lastID, nil
}

// DelCQ implements control.RDMA.
func (e *Engine) DelCQ(id uint32) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	c := e.cqs[id]
	if c == nil {
		return fmt.Errorf("cq: no %d: %w", id, syscall.ENOENT)
	}
	if c.users > 0 {
		return fmt.Errorf("cq %d: a queue pair uses it: %w", id, syscall.EBUSY)
	}
	delete(e.cqs, id)
	e.taken -= len(c.ring)
	return nil
}

// PollCQ implements control.RDMA.
func (e *Engine) PollCQ(p control.Poll) (out control.Completions, err error) {
	e.mu.Lock()
	c := e.cqs[p.CQ]
	e.mu.Unlock()
	if c == nil {
		return out, fmt.Errorf("cq: no %d: %w", p.CQ, syscall.ENOENT)
	}
	if p.Max == 0 {
		return out, fmt.Errorf("cq %d: a notification after 0 completions: %w", p.CQ, syscall.EINVAL)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	n := min(c.n, int(min(p.Max, control.MaxWCs)))
	out.WCs = make([]control.WC, n)
	for i := range out.WCs {
		out.WCs[i] = c.ring[(c.first+i)%len(c.ring)]
	}
	c.first, c.n = (c.first+n)%len(c.ring), c.n-n
	c.reserved -= n
	out.More = c.n > 0
	c.armed = c.n == 0
	return out, nil
}
