package gve

import (
	"sync"

	"vnic.dev/vnic/internal/nic"
	"vnic.dev/vnic/internal/scm"
)

// vectors are the MSI-X vectors of a device. A vector of queues fires once, which masks it, and its doorbell
// re-arms it. The driver does not look for work again after that (gve_napi_poll_dqo), so an interrupt that was
// due meanwhile is raised then. Any goroutine may fire and arm them.
type vectors struct {
	nic.EventFDs
	v   []vector
	now func() int64
}

// vector is one MSI-X vector. Its lock is a leaf: its holder takes no other lock and makes no system call.
type vector struct {
	port    *nic.Port // nil: no interrupt is lost
	mu      sync.Mutex
	eventFD *nic.EventFD // under mu; nil: none
	armed   bool         // under mu
	always  bool         // under mu: never masked (management)
	due     bool         // under mu: an interrupt is latched

	// Moderation, under mu; times of the clock now.
	now      func() int64
	wait     func(until int64) // notifies the moderator; nil: no delays
	interval int64             // least time between two interrupts; 0: none
	last     int64             // time of the last interrupt, while interval is set
	until    int64             // when a delayed interrupt is due; 0: none
}

// init makes n vectors; now returns the time in nanoseconds, never 0.
func (vs *vectors) init(n int, now func() int64) {
	vs.v, vs.now = make([]vector, n), now
	for i := range vs.v {
		vs.v[i].now = now
	}
}

// losesFor makes the vectors of queues drop interrupts when the port requests it (LoseInterrupt).
func (vs *vectors) losesFor(p *nic.Port) {
	for i := range vs.v {
		vs.v[i].port = p
	}
}

// get returns vector i; nil: none.
func (vs *vectors) get(i int) *vector {
	if i < 0 || i >= len(vs.v) {
		return nil
	}
	return &vs.v[i]
}

// fire raises vector i, or latches the interrupt.
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

// change calls the function to, which changes the vector's state. If an interrupt is latched then and the
// vector can raise it, change raises, delays or (LoseInterrupt) drops it.
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
	// The vector stays armed for the next interrupt.
	if !v.always && v.port != nil && v.port.InterruptLost() {
		v.mu.Unlock()
		return
	}
	v.armed = false
	e.Enter() // under mu, so that setFD sees the writer (Busy)
	v.mu.Unlock()
	e.Write()
}

// setFD sets the eventfd of vector i, which the vector owns; -1: none.
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

// reset masks all vectors and clears latched interrupts. Eventfds stay.
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
