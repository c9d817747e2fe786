package nic

import (
	"time"

	"vnic.dev/vnic/wire"
)

// Waits are the busy receivers that a transmit worker's held frames wait for, while it sleeps. The worker owns them.
type Waits struct {
	by     wire.Waker
	on     []wire.Waitable // armed
	oldest time.Time
}

// NewWaits makes Waits for up to n frames, with by to be woken.
func NewWaits(by wire.Waker, n int) *Waits { return &Waits{by: by, on: make([]wire.Waitable, 0, n)} }

// Add arms the receiver of a frame that is held since then. false: it has buffers by now.
func (w *Waits) Add(q wire.Waitable, since time.Time) bool {
	if w.oldest.IsZero() || since.Before(w.oldest) {
		w.oldest = since
	}
	if n := len(w.on); n > 0 && w.on[n-1] == q {
		return true
	}
	if !q.Arm(w.by) {
		return false
	}
	w.on = append(w.on, q)
	return true
}

// Left is how long the first of the frames may wait on, at most limit in all.
func (w *Waits) Left(limit time.Duration) time.Duration {
	return max(0, limit-time.Since(w.oldest))
}

// End disarms all.
func (w *Waits) End() {
	for _, q := range w.on {
		q.Disarm(w.by)
	}
	clear(w.on)
	w.on, w.oldest = w.on[:0], time.Time{}
}
