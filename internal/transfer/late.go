package transfer

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"vnic.dev/vnic/devmem"
)

// late has a receiver give tokens back later than it could, as a program does that is slow to use what it has received:
// how a page pool runs low for a while.
type late struct {
	by atomic.Int64 // nanoseconds; 0: at once

	mu      sync.Mutex
	waiting uint64 // under mu: tokens
	most    uint64 // under mu: of these at a time, since the transfer began
}

// maxLate is how late tokens may be.
const maxLate = 10 * time.Second

// LateTokens has the Node's receivers give tokens back so much later, from now on; 0: at once. At the end of a transfer
// they go back all the same.
func (n *Node) LateTokens(_ context.Context, by time.Duration) error {
	if by < 0 || by > maxLate {
		return fmt.Errorf("tokens late by %v: 0 to %v: %w", by, maxLate, syscall.EINVAL)
	}
	n.late.by.Store(int64(by))
	return nil
}

// begin begins a transfer.
func (l *late) begin() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.most = 0
}

// now is how late tokens are to be that could go back now.
func (l *late) now() time.Duration { return time.Duration(l.by.Load()) }

// giveBack gives tokens back after a while, or when ctx ends: then the transfer is over, and the connection may be.
func (l *late) giveBack(ctx context.Context, by time.Duration, t *devmem.Tokens, c devmem.Conn) error {
	n := uint64(t.Len())
	l.mu.Lock()
	l.waiting += n
	l.most = max(l.most, l.waiting)
	l.mu.Unlock()
	timer := time.NewTimer(by)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
	l.mu.Lock()
	l.waiting -= n
	l.mu.Unlock()
	if err := t.GiveBack(c); ctx.Err() == nil {
		return err
	}
	return nil
}

// mostLate is how many tokens were late at a time.
func (l *late) mostLate() uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.most
}
