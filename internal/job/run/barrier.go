package run

import (
	"context"
	"sync"
)

// barrier makes n goroutines wait for each other, any number of times. wait also returns when ctx ends.
//
// Both directions of a rail begin the stages connect, transfer and verify together, because of a fault of Linux's
// driver gve: while gve binds or unbinds a receive queue it stops the transmit queues, and starts them without
// running their queueing disciplines. A packet that waits there is sent only with the next one, and TCP does not
// retransmit a packet that still waits in its own host.
type barrier struct {
	ctx     context.Context
	n       int
	mu      sync.Mutex
	waiting int
	all     chan struct{} // closed when n wait, and then replaced
}

func newBarrier(ctx context.Context, n int) *barrier {
	return &barrier{ctx: ctx, n: n, all: make(chan struct{})}
}

// leave makes the barrier wait for one goroutine less.
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
