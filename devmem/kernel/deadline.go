package kernel

import (
	"sync"
	"time"
)

// deadline is one that can be moved while somebody waits for it.
type deadline struct {
	mu     sync.Mutex
	timer  *time.Timer
	passed chan struct{}
}

func newDeadline() *deadline { return &deadline{passed: make(chan struct{})} }

// set moves the deadline; the zero time is never.
func (d *deadline) set(t time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.timer != nil && !d.timer.Stop() {
		<-d.passed // its function runs, or has run
	}
	d.timer = nil
	select {
	case <-d.passed:
		d.passed = make(chan struct{})
	default:
	}
	if t.IsZero() {
		return
	}
	c := d.passed
	left := time.Until(t)
	if left <= 0 {
		close(c)
		return
	}
	d.timer = time.AfterFunc(left, func() { close(c) })
}

// wait is closed once the deadline, as set now, has passed.
func (d *deadline) wait() <-chan struct{} {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.passed
}

func passed(d <-chan struct{}) bool {
	select {
	case <-d:
		return true
	default:
		return false
	}
}
