package gateway

import (
	"context"
	"slices"
	"sync"
)

// turns lets a number of goroutines at a time do something. Of the owners for whom goroutines wait, each has one of
// them go on in turn, so that nobody waits behind all of another port's.
type turns struct {
	mu    sync.Mutex
	free  int                       // how many more may go on; 0 if any waits
	by    map[owner][]chan struct{} // those that wait, oldest first, closed when they may go on; no empty lists
	order []owner                   // of by, the next one first
}

func newTurns(n int) *turns { return &turns{free: n, by: map[owner][]chan struct{}{}} }

// take waits for its turn; the caller calls give then. An error: ctx has ended.
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
	if i < 0 { // its turn came just now
		t.next()
		return ctx.Err()
	}
	if t.by[o] = slices.Delete(t.by[o], i, i+1); len(t.by[o]) == 0 {
		delete(t.by, o)
		t.order = slices.DeleteFunc(t.order, func(x owner) bool { return x == o })
	}
	return ctx.Err()
}

// wait gives what is closed when it is the caller's turn; nil: it is now.
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

// next has the next one go on. Under mu.
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
