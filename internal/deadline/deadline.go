// Package deadline has a deadline that can be moved while goroutines wait for it, like net.Conn's.
package deadline

import (
	"sync"
	"time"
)

// Deadline must be made by [New]. Its methods are safe for concurrent use.
type Deadline struct {
	mu     sync.Mutex
	timer  *time.Timer   // under mu
	passed chan struct{} // under mu
}

// New returns a deadline that does not pass unless Set sets a time.
func New() *Deadline { return &Deadline{passed: make(chan struct{})} }

// Set moves the deadline; the zero time means never.
func (d *Deadline) Set(t time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.timer != nil && !d.timer.Stop() {
		<-d.passed // the timer's function runs, or has run
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
	left := time.Until(t)
	c := d.passed
	if left <= 0 {
		close(c)
		return
	}
	d.timer = time.AfterFunc(left, func() { close(c) })
}

// Wait returns a channel that is closed when the deadline passes. If Set moves the deadline before, the channel
// is closed at the new time.
func (d *Deadline) Wait() <-chan struct{} {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.passed
}
