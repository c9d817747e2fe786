package gateway

import (
	"context"
	"math"
	"slices"
	"sync"
)

// turns limits how many goroutines are between a successful take and give at a time. The owners of waiting goroutines
// take turns.
type turns struct {
	mu      sync.Mutex
	free    int                   // how many more goroutines may go on
	waiting shares[chan struct{}] // closed when the goroutine may go on
}

func newTurns(n int) *turns { return &turns{free: n, waiting: newShares[chan struct{}](math.MaxInt)} }

// take waits until the caller may go on, and returns nil; the caller then has to call give. If ctx ends first, take
// returns ctx's error.
func (t *turns) take(ctx context.Context, o owner) error {
	turn := t.wait(o)
	if turn == nil {
		return nil
	}
	select {
	case <-turn:
		return nil
	case <-ctx.Done():
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if i := slices.Index(t.waiting.by[o], turn); i >= 0 {
		t.waiting.remove(o, i)
	} else { // the turn has come meanwhile: pass it on
		t.next()
	}
	return ctx.Err()
}

// wait returns a channel that is closed when it is the caller's turn; nil: the caller may go on now.
func (t *turns) wait(o owner) (turn chan struct{}) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.free > 0 {
		t.free--
		return nil
	}
	turn = make(chan struct{})
	t.waiting.add(o, turn)
	return turn
}

func (t *turns) give() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.next()
}

// next lets a waiting goroutine go on, or else increases free. The caller holds mu.
func (t *turns) next() {
	if turn, ok := t.waiting.next(); ok {
		close(turn)
	} else {
		t.free++
	}
}
