package nic

import (
	"slices"
	"sync"
	"sync/atomic"

	"vnic.dev/vnic/wire"
)

// RxBase is the part of a receive queue that is the same in all device models: its lock, the list
// of senders that wait for buffers, and the error that stopped it. A device model embeds it in its
// RxQueue, of which it implements Lock, Unlock, Arm and Disarm, and calls Init before the queue is
// used.
//
// Unlock does what must not be done under the lock: it wakes senders and reports an error.
type RxBase struct {
	model   RxModel
	waiting atomic.Int32 // how many senders wait, one that Arm is busy with included

	mu      sync.Mutex
	waiters []wire.Waker // under mu, as all that follows
	woken   []wire.Waker // to be woken by Unlock
	err     error        // why the queue stopped
	failed  bool         // Unlock is to report err
}

// RxModel is what a device model says to its queue's RxBase.
type RxModel interface {
	// AwaitBuffers asks the driver to say when it posts buffers; WakeAll is called then. It returns
	// false if there are more buffers already than the last frame found, or if the queue does not
	// run. It is called under the lock.
	AwaitBuffers() bool
	// Stopped is called once after each Fail, without the lock, on the goroutine that held it. It
	// does not wait.
	Stopped(err error)
}

// Init sets the device model's queue.
func (b *RxBase) Init(m RxModel) { b.model = m }

// Lock implements RxQueue.
func (b *RxBase) Lock() { b.mu.Lock() }

// Unlock implements RxQueue.
func (b *RxBase) Unlock() {
	woken, failed, err := b.woken, b.failed, b.err
	b.woken, b.failed = nil, false
	b.mu.Unlock()
	for _, w := range woken {
		w.Wake()
	}
	if failed {
		b.model.Stopped(err)
	}
}

// Arm implements wire.Waitable.
func (b *RxBase) Arm(w wire.Waker) bool {
	b.Lock()
	defer b.Unlock()
	b.waiting.Add(1) // before AwaitBuffers looks: a driver that posts and then asks Waiting does it the other way round
	if b.err != nil || !b.model.AwaitBuffers() {
		b.waiting.Add(-1)
		return false
	}
	b.waiters = append(b.waiters, w)
	return true
}

// Disarm implements wire.Waitable.
func (b *RxBase) Disarm(w wire.Waker) {
	b.Lock()
	defer b.Unlock()
	if i := slices.Index(b.waiters, w); i >= 0 {
		b.waiters = slices.Delete(b.waiters, i, i+1)
		b.waiting.Add(-1)
	}
}

// Waiting says whether senders wait. It needs no lock: after buffers were made visible, it misses
// no sender.
func (b *RxBase) Waiting() bool { return b.waiting.Load() > 0 }

// WakeAll has all senders that wait woken by Unlock.
func (b *RxBase) WakeAll() {
	b.waiting.Add(-int32(len(b.waiters)))
	b.woken = append(b.woken, b.waiters...)
	clear(b.waiters)
	b.waiters = b.waiters[:0]
}

// Err is the error that stopped the queue.
func (b *RxBase) Err() error { return b.err }

// Fail stops the queue and has all senders that wait woken. It returns false if the queue has
// stopped already.
func (b *RxBase) Fail(err error) bool {
	if b.err != nil {
		return false
	}
	b.err, b.failed = err, true
	b.WakeAll()
	return true
}

// Restart forgets the error: the driver sets the queue up again, or has ended it.
func (b *RxBase) Restart() { b.err = nil }
