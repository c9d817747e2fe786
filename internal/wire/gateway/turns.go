package gateway

import (
	"context"
	"slices"
	"sync"
)

// turns limits how many goroutines go on at a time. Owners with waiting goroutines take turns, for
// one goroutine each, so that no owner waits behind all goroutines of another.
type turns struct {
	mu    sync.Mutex
	free  int                       // how many more goroutines may go on; 0 if any waits
	by    map[owner][]chan struct{} // waiting goroutines, oldest first, closed when they may go on; no empty lists
	order []owner                   // keys of by, the next one first
}

func newTurns(n int) *turns { return &turns{free: n, by: map[owner][]chan struct{}{}} }

// take waits until the caller may go on. The caller calls give when it is done. After an error (ctx
// has ended) it does not.
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
	i := slices.Index(t.by[o], turn)
	if i < 0 { // the turn came just now: pass it on
		t.next()
		return ctx.Err()
	}
	if t.by[o] = slices.Delete(t.by[o], i, i+1); len(t.by[o]) == 0 {
		delete(t.by, o)
		t.order = slices.DeleteFunc(t.order, func(x owner) bool { return x == o })
	}
	return ctx.Err()
}

// wait returns a channel that next closes when it is the caller's turn; nil: the caller may go on
// now.
func (t *turns) wait(o owner) (turn chan struct{}) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.free > 0 {
		t.free--
		return nil
	}
	turn = make(chan struct{})
	if len(t.by[o]) == 0 {
		t.order = append(t.order, o)
	}
	t.by[o] = append(t.by[o], turn)
	return turn
}

func (t *turns) give() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.next()
}

// next lets the next goroutine go on. The caller holds mu.
func (t *turns) next() {
	if len(t.order) == 0 {
		t.free++
		return
	}
	o := t.order[0]
	t.order = t.order[1:]
	close(t.by[o][0])
	if t.by[o] = t.by[o][1:]; len(t.by[o]) == 0 {
		delete(t.by, o)
	} else {
		t.order = append(t.order, o)
	}
}
