package gve

import (
	"sync"

	"vnic.dev/vnic/internal/nic"
	"vnic.dev/vnic/internal/scm"
)

// vectors are the MSI-X vectors of a device. A vector of queues fires once, which masks it until the driver arms it
// again by its doorbell. After that write the driver does not look for work again (gve_napi_poll_dqo), so an interrupt
// that was due while the vector was masked is then raised, or delayed by moderation. Any goroutine may fire and arm
// vectors.
type vectors struct {
	nic.EventFDs
	v   []vector
	now func() int64
}

// vector is one MSI-X vector. Its lock is a leaf: its holder takes no other lock and makes no system call.
type vector struct {
	port    *nic.Port // for InterruptLost; nil: no interrupt is lost
	mu      sync.Mutex
	eventFD *nic.EventFD // under mu; nil: none
	armed   bool         // under mu
	always  bool         // under mu: never masked (management)
	due     bool         // under mu: an interrupt is latched: not raised yet

	// Moderation; all but now under mu; times are by the clock now.
	now      func() int64
	wait     func(until int64) // notifies the moderator; nil: no delays
	interval int64             // least time between two interrupts; 0: none
	last     int64             // time of the last interrupt, raised or lost, while interval was set; 0: none since reset
	until    int64             // when raiseDue has to look for a delayed interrupt; 0: not at all
}

// init makes n vectors; now returns the time in nanoseconds, and must never return 0.
func (vs *vectors) init(n int, now func() int64) {
	vs.v, vs.now = make([]vector, n), now
	for i := range vs.v {
		vs.v[i].now = now
	}
}

// losesFor makes the vectors of queues drop interrupts as p.LoseInterrupt demands.
func (vs *vectors) losesFor(p *nic.Port) {
	for i := range vs.v {
		vs.v[i].port = p
	}
}

// get returns vector i; nil: there is none.
func (vs *vectors) get(i int) *vector {
	if i < 0 || i >= len(vs.v) {
		return nil
	}
	return &vs.v[i]
}

// fire latches an interrupt of vector i, if there is such a vector, and raises it if possible (change).
func (vs *vectors) fire(i int) {
	if v := vs.get(i); v != nil {
		v.change(func() { v.due = true })
	}
}

// arm handles db, the value written to vector i's doorbell.
func (vs *vectors) arm(i int, db uint32) {
	if v := vs.get(i); v != nil {
		v.change(func() {
			v.armed = db&irqEnable != 0
			if interval, ok := irqInterval(db); ok {
				v.interval = interval
			}
		})
	}
}

// setManagement makes i the only vector that is never masked; -1: none.
func (vs *vectors) setManagement(i int) {
	for j := range vs.v {
		v := &vs.v[j]
		v.change(func() { v.always = j == i })
	}
}

// change calls its argument under mu, to change the vector's state. If then an interrupt is latched, the vector is
// armed or never masked, and it has an eventfd, change raises, delays or (LoseInterrupt) drops the interrupt.
func (v *vector) change(to func()) {
	v.mu.Lock()
	to()
	e := v.eventFD
	if !v.due || !v.armed && !v.always || e == nil {
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
	// If the interrupt is lost, the vector stays armed for the next one.
	if !v.always && v.port != nil && v.port.InterruptLost() {
		v.mu.Unlock()
		return
	}
	v.armed = false
	e.Enter() // under mu, so that setFD sees the writer (Busy)
	v.mu.Unlock()
	e.Write()
}

// setFD sets the eventfd of vector i, takes ownership of fd, and ends the old eventfd; -1: none.
func (vs *vectors) setFD(i, fd int) {
	v := vs.get(i)
	if v == nil {
		scm.Close(fd)
		return
	}
	var e *nic.EventFD
	if fd >= 0 {
		e = vs.New(fd)
	}
	var old *nic.EventFD
	v.change(func() {
		old, v.eventFD = v.eventFD, e
		if old != nil && old.Busy() { // a signal in the old eventfd may be lost
			v.due, v.armed = true, true
		}
	})
	vs.End(old)
}

// reset masks all vectors, the management vector included, and clears latched interrupts and intervals. Eventfds stay.
func (vs *vectors) reset() {
	for i := range vs.v {
		v := &vs.v[i]
		v.change(func() {
			v.armed, v.always, v.due = false, false, false
			v.interval, v.last, v.until = 0, 0, 0
		})
	}
}

func (vs *vectors) close() {
	for i := range vs.v {
		vs.setFD(i, -1)
	}
}
