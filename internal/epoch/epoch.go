// Package epoch lets a writer wait until all readers of an old version of shared data have left, while readers
// never wait.
package epoch

import "sync/atomic"

// Epoch lets a writer wait until all readers that were inside (between Enter and Leave) have left, as sleepable
// RCU does (Linux, kernel/rcu/srcutree.c): there are two counters of readers inside, and an index of the counter
// that new readers use. Each Wait switches the index.
//
// Why it is correct: a reader calls Enter, which counts it, before it loads the shared table, a writer stores the
// new table before Wait, and all operations are sequentially consistent. If a counter is zero after the new
// table was stored, readers that count themselves in it later load the new table, and earlier ones have left.
// So Wait must see each counter at zero once. A reader that loaded the index long ago may count itself in
// either counter: at worst the writer waits for it needlessly.
type Epoch struct {
	index   atomic.Uint32
	waiting atomic.Bool
	wake    chan struct{} // capacity 1: a value makes the waiting writer read the counter again
	grace   chan struct{} // capacity 1: has a value while a writer is in drain
	_       [64]byte
	inside  [2]struct {
		n atomic.Int64
		_ [56]byte // so that no cache line (64 bytes) has both counters
	}
	waits atomic.Uint64
}

// Init makes a zero Epoch ready. Call it before the first Enter and Wait.
func (e *Epoch) Init() {
	e.wake, e.grace = make(chan struct{}, 1), make(chan struct{}, 1)
}

// Enter begins a section, and Leave with the token ends it. A Wait that is called during the section returns after
// the section's end. Enter never waits. Do not call Wait within the section.
func (e *Epoch) Enter() (token int) {
	i := e.index.Load() & 1
	e.inside[i].n.Add(1)
	return int(i)
}

// Leave ends the section whose Enter returned token. It never waits.
func (e *Epoch) Leave(token int) {
	n := e.inside[token&1].n.Add(-1)
	if n > 0 {
		return
	}
	if n < 0 {
		panic("epoch: Leave without Enter")
	}
	if e.waiting.Load() { // the writer stores waiting, then loads the counter: it sees the 0, or we see waiting
		select {
		case e.wake <- struct{}{}:
		default:
		}
	}
}

// Empty reports whether it has seen each counter at zero: then every reader that was inside at the call has
// left.
func (e *Epoch) Empty() bool { return e.inside[0].n.Load() == 0 && e.inside[1].n.Load() == 0 }

// Wait returns after every reader that was inside at the call has left; it may also wait for readers that entered
// later. Concurrent calls of Wait run one after another.
func (e *Epoch) Wait() {
	e.waits.Add(1)
	e.grace <- struct{}{}
	defer func() { <-e.grace }()
	cur := e.index.Load() & 1
	e.drain(1 - cur) // readers that loaded an old index
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
		<-e.wake
	}
}

// Waits returns how often Wait was called; it also counts calls that have not returned.
func (e *Epoch) Waits() uint64 { return e.waits.Load() }
