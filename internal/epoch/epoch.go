// Package epoch lets a writer wait until all readers of an old version have left, while readers
// never wait.
package epoch

import "sync/atomic"

// Epoch lets a writer wait until all readers that were inside have left, as sleepable RCU does
// (Linux, kernel/rcu/srcutree.c): there are two counters of readers inside, and an index of the
// counter that new readers use. A waiting writer switches the index, so that the counter it waits
// for only decreases; readers never wait.
//
// Why it is correct: a reader counts itself before it loads the table, and all operations are
// sequentially consistent. If a counter is zero after the new table was stored, every reader that
// counts itself in it later loads the new table, and every earlier reader has left. So each counter
// must be seen at zero once. A reader that loaded the index long ago and counts itself in the other
// counter is no exception: the writer may only wait for it needlessly.
type Epoch struct {
	index   atomic.Uint32
	waiting atomic.Bool
	wake    chan struct{} // capacity 1: a token to read the counters again
	grace   chan struct{} // capacity 1: held by the waiting writer
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

// Enter begins a section that Wait waits for; the caller passes the token to Leave. Enter never
// waits. A reader inside must not call Wait.
func (e *Epoch) Enter() (token int) {
	i := e.index.Load() & 1
	e.inside[i].n.Add(1)
	return int(i)
}

// Leave ends the section that Enter began.
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
