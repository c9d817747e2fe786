package guestexec

import (
	"context"
	"sync"
)

// credit is how many bytes of a stream the guest may send to the host.
type credit struct {
	mu   sync.Mutex
	left int           // under mu
	more chan struct{} // under mu: closed and replaced when left grows
}

func newCredit(n int) *credit { return &credit{left: n, more: make(chan struct{})} }

func (c *credit) give(n int) {
	if n == 0 {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.left += n
	close(c.more)
	c.more = make(chan struct{})
}

// take waits for credit, takes up to most bytes of it, and returns how many; 0: there was none until ctx ended.
func (c *credit) take(ctx context.Context, most int) int {
	for {
		c.mu.Lock()
		n, more := min(c.left, most), c.more
		c.left -= n
		c.mu.Unlock()
		if n > 0 {
			return n
		}
		select {
		case <-more:
		case <-ctx.Done():
			return 0
		}
	}
}
