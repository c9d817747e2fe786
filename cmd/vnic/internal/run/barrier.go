package run

import (
	"context"
	"sync"
)

// barrier has some wait for each other, as often as they like, or for the end of a context.
//
// Both directions of a rail go from stage to stage together. While the kernel's gve binds or unbinds a receive queue it
// stops the transmit queues, and then starts them without having their disciplines run: what waits there goes out with
// the next packet, and TCP sends none, as it sends nothing again that is still there. So neither direction connects or
// transfers while the other one prepares or finishes.
type barrier struct {
	ctx     context.Context
	n       int
	mu      sync.Mutex
	waiting int
	all     chan struct{} // closed when all n are there
}

func newBarrier(ctx context.Context, n int) *barrier {
	return &barrier{ctx: ctx, n: n, all: make(chan struct{})}
}

// leave is of one that does not wait any more, while others do.
func (b *barrier) leave() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.n--; b.n > 0 && b.waiting == b.n {
		close(b.all)
		b.waiting, b.all = 0, make(chan struct{})
	}
}

func (b *barrier) wait() {
	b.mu.Lock()
	all := b.all
	if b.waiting++; b.waiting == b.n {
		close(all)
		b.waiting, b.all = 0, make(chan struct{})
	}
	b.mu.Unlock()
	select {
	case <-all:
	case <-b.ctx.Done():
	}
}
