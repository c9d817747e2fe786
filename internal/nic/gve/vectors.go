package gve

import (
	"sync"

	"vnic.dev/vnic/internal/nic"
	"vnic.dev/vnic/internal/scm"
)

// vectors are the MSI-X vectors of a device. A vector fires once, is masked by that, and is armed
// again by its doorbell; what happens while it is masked is latched, and fires then: the driver
// does not look again after it has armed (gve_napi_poll_dqo). They may be fired and armed on any
// goroutine.
type vectors struct {
	nic.EventFDs
	v   []vector
	now func() int64
}

// vector is one MSI-X vector. Its lock is a leaf, held over no system call.
type vector struct {
	port   *nic.Port // nil: it loses nothing (nic.Port.LoseInterrupt)
	mu     sync.Mutex
	l      *nic.EventFD // under mu; nil: none
	armed  bool         // under mu
	always bool         // under mu: never masked, as the management vector
	due    bool         // under mu: latched

	// Moderation, under mu: nanoseconds, and times of now.
	now      func() int64
	wait     func(until int64) // tells the moderator; nil: there is none, and no interrupt waits
	interval int64             // between two interrupts; 0: none
	last     int64             // when one was raised last, while there is an interval
	until    int64             // one is due, and waits until then; 0: none does
}

// init makes n vectors; now is the time in nanoseconds, never 0, as shape.Now.
func (vs *vectors) init(n int, now func() int64) {
	vs.v, vs.now = make([]vector, n), now
	for i := range vs.v {
		vs.v[i].now = now
	}
}

// losesFor has interrupts be lost that a port is to lose: those of queues, which have others to follow.
func (vs *vectors) losesFor(p *nic.Port) {
	for i := range vs.v {
		vs.v[i].port = p
	}
}

// at gives vector i, nil if there is none.
func (vs *vectors) at(i int) *vector {
	if i < 0 || i >= len(vs.v) {
		return nil
	}
	return &vs.v[i]
}

// fire raises vector i, or latches it if it is masked or has no eventfd.
func (vs *vectors) fire(i int) {
	if v := vs.at(i); v != nil {
		v.change(func() { v.due = true })
	}
}

// arm is vector i's doorbell.
func (vs *vectors) arm(i int, db uint32) {
	if v := vs.at(i); v != nil {
		v.change(func() {
			v.armed = db&irqEnable != 0
			if interval, ok := irqInterval(db); ok {
				v.interval = interval
			}
		})
	}
}

// setManagement makes i the only vector that is never masked; -1: there is none.
func (vs *vectors) setManagement(i int) {
	for j := range vs.v {
		v := &vs.v[j]
		v.change(func() { v.always = j == i })
	}
}

// change changes the vector's state, and writes its eventfd if that is due then and not too soon.
func (v *vector) change(to func()) {
	v.mu.Lock()
	to()
	l := v.l
	if !v.due || !v.armed && !v.always || l == nil {
		v.mu.Unlock()
		return
	}
	if v.interval > 0 && v.wait != nil && !v.always {
		now := v.now()
		if until := v.last + v.interval; v.last != 0 && until > now {
			wait := v.wait
			v.until = until
			v.mu.Unlock()
			wait(until)
			return
		}
		v.last = now
	}
	v.due = false
	if !v.always && v.port != nil && v.port.InterruptLost() { // on its way to the processor: it stays armed, for the next
		v.mu.Unlock()
		return
	}
	v.armed = false
	l.Enter() // under mu: replacing the eventfd sees it
	v.mu.Unlock()
	l.Write()
}

// setFD gives vector i an eventfd, which is the vector's from now on; -1: none. What is latched
// fires if the vector is armed.
func (vs *vectors) setFD(i, fd int) {
	v := vs.at(i)
	if v == nil {
		scm.Close(fd)
		return
	}
	var l *nic.EventFD
	if fd >= 0 {
		l = vs.New(fd)
	}
	var old *nic.EventFD
	v.change(func() {
		old, v.l = v.l, l
		if old != nil && old.Busy() { // a write to the old one may be lost: the new one gets it
			v.due, v.armed = true, true
		}
	})
	vs.End(old)
}

// reset masks all vectors and forgets what is latched. Eventfds stay.
func (vs *vectors) reset() {
	for i := range vs.v {
		v := &vs.v[i]
		v.change(func() {
			v.armed, v.always, v.due = false, false, false
			v.interval, v.last, v.until = 0, 0, 0
		})
	}
}

// close lets go of all eventfds.
func (vs *vectors) close() {
	for i := range vs.v {
		vs.setFD(i, -1)
	}
}
