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

// late makes a receiver return tokens with a delay, like a program that is slow to use received data.
type late struct {
	by atomic.Int64 // the delay, in nanoseconds; 0: none

	mu      sync.Mutex
	waiting uint64 // under mu: how many tokens are delayed now
	most    uint64 // under mu: the largest value of waiting since begin
}

const maxLate = 10 * time.Second

// LateTokens sets the delay with which Receive, in mode devmem, returns the tokens of fragments from now on; 0: none.
// When Receive ends, it returns its delayed tokens.
func (n *Node) LateTokens(_ context.Context, by time.Duration) error {
	if by < 0 || by > maxLate {
		return fmt.Errorf("tokens late by %v: 0 to %v: %w", by, maxLate, syscall.EINVAL)
	}
	n.late.by.Store(int64(by))
	return nil
}

func (l *late) begin() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.most = 0
}

func (l *late) now() time.Duration { return time.Duration(l.by.Load()) }

// giveBack returns tokens to c after a delay, or when ctx ends: c may then be closed, and an error does not matter.
func (l *late) giveBack(ctx context.Context, by time.Duration, t *devmem.Tokens, c devmem.Conn) error {
	n := uint64(t.Len())
	l.mu.Lock()
	l.waiting += n
	l.most = max(l.most, l.waiting)
	l.mu.Unlock()
	select {
	case <-time.After(by):
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

func (l *late) mostLate() uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.most
}
