// Package epoch lets who changes something wait until everyone who used it as it was before has done with it, while
// nobody who uses it ever waits.
package epoch

import "sync/atomic"

// Epoch lets a writer wait until everyone who was inside has left, as sleepable RCU does (Linux,
// kernel/rcu/srcutree.c): two counters of who is inside, and an index that says which one those who
// enter now use. A writer that waits turns the index, so that the counter it waits for only falls;
// nobody who enters ever waits.
//
// Why it is sound: one who is inside has counted itself before it loads the table, and all of this is sequentially
// consistent. If a counter is seen to be zero after the new table was stored, everyone who counts itself in it later
// loads the new table, and everyone before has left. So each counter has to be seen at zero once; one who loaded the
// index long ago and counts itself in the "wrong" counter is no exception, it may only be waited for needlessly.
type Epoch struct {
	index   atomic.Uint32
	waiting atomic.Bool
	wake    chan struct{} // capacity 1: a token to look at the counters again
	grace   chan struct{} // capacity 1: one writer waits at a time
	_       [64]byte
	inside  [2]struct {
		n atomic.Int64
		_ [56]byte // one cache line each
	}
	waits atomic.Uint64 // calls of Wait
}

// Init makes a zero Epoch ready.
func (e *Epoch) Init() {
	e.wake, e.grace = make(chan struct{}, 1), make(chan struct{}, 1)
}

// Enter begins a section that Wait waits for; the token goes to Leave. It never waits. One who is inside must not call
// Wait.
func (e *Epoch) Enter() (token int) {
	i := e.index.Load() & 1
	e.inside[i].n.Add(1)
	return int(i)
}

// Leave ends what Enter began.
func (e *Epoch) Leave(token int) {
	n := e.inside[token&1].n.Add(-1)
	if n > 0 {
		return
	}
	if n < 0 {
		panic("epoch: Leave without Enter")
	}
	if e.waiting.Load() { // stored before the counter was looked at: one of us sees the other
		select {
		case e.wake <- struct{}{}:
		default:
		}
	}
}

// Empty tells that everyone who was inside at the call has left: each counter was seen at zero, so there is nobody to
// wait for, also if another writer waits.
func (e *Epoch) Empty() bool { return e.inside[0].n.Load() == 0 && e.inside[1].n.Load() == 0 }

// Wait returns when everyone who was inside at the call has left. Behind another writer it also waits for those who are
// inside when its turn comes.
func (e *Epoch) Wait() {
	e.waits.Add(1)
	e.grace <- struct{}{}
	defer func() { <-e.grace }()
	cur := e.index.Load() & 1
	e.drain(1 - cur) // those who were slow to count themselves, long ago
	e.index.Store(1 - cur)
	e.drain(cur)
}

func (e *Epoch) drain(i uint32) {
	n := &e.inside[i].n
	if n.Load() == 0 {
		return
	}
	e.waiting.Store(true)
	defer e.waiting.Store(false)
	for n.Load() != 0 {
		<-e.wake // a token may be old: look again
	}
}

// Waits counts the calls of Wait.
func (e *Epoch) Waits() uint64 { return e.waits.Load() }
