package gve

import (
	"math"
	"sync/atomic"
	"time"

	"vnic.dev/vnic/internal/nic"
)

// Interrupt moderation: the driver writes an interval to a vector's doorbell (gve_set_itr_coalesce_usecs_dqo;
// `ethtool -C`), the least time between two interrupts of the vector; the management vector has none. A vector with
// interval 0 does not read the clock.

// Bits of a vector's doorbell (gve_dqo.h, GVE_ITR_*), and the unit of its interval in nanoseconds.
const (
	irqEnable        = 1 << 0 // GVE_ITR_ENABLE_BIT_DQO: arms the vector; clear: masks it
	irqNoUpdate      = 3 << 3 // GVE_ITR_NO_UPDATE_DQO: keep the interval
	irqIntervalShift = 5
	irqIntervalMask  = 1<<12 - 1
	irqIntervalUnit  = int64(2 * time.Microsecond)
)

// irqInterval returns, in nanoseconds, the interval in db, a value written to a vector's doorbell. ok is false if db
// keeps the old interval.
func irqInterval(db uint32) (interval int64, ok bool) {
	if db&irqNoUpdate == irqNoUpdate {
		return 0, false
	}
	return int64(db>>irqIntervalShift&irqIntervalMask) * irqIntervalUnit, true
}

// moderator is the goroutine that raises interrupts delayed by moderation. The device's nic.Monitor cannot do this: it
// frees writers that block in an eventfd, and the moderator may be such a writer.
type moderator struct {
	vectors *vectors
	sleeper *nic.Sleeper
	next    atomic.Int64 // when it looks next, by vectors.now; never: when wait wakes it
	closing atomic.Bool
	done    chan struct{}
}

// never is later than any shape.Now.
const never = math.MaxInt64

func (vs *vectors) moderate() (*moderator, error) {
	s, err := nic.NewSleeper()
	if err != nil {
		return nil, err
	}
	m := &moderator{vectors: vs, sleeper: s, done: make(chan struct{})}
	m.next.Store(never)
	vs.setWait(m.wait)
	go m.run()
	return m, nil
}

// setWait sets the function that a vector calls with the time at which an interrupt that it delays is due; nil: no
// interrupt is delayed from now on, and delayed ones are raised.
func (vs *vectors) setWait(wait func(until int64)) {
	for i := range vs.v {
		v := &vs.v[i]
		v.change(func() { v.wait, v.until = wait, 0 })
	}
}

// wait makes the moderator look for due interrupts at time until or earlier.
func (m *moderator) wait(until int64) {
	if until < m.next.Load() {
		m.sleeper.Wake()
	}
}

func (m *moderator) run() {
	defer close(m.done)
	for !m.closing.Load() {
		m.sleeper.Park() // before raiseDue looks, so that a later wait wakes it
		m.next.Store(never)
		next := m.vectors.raiseDue()
		m.next.Store(next)
		if m.closing.Load() {
			m.sleeper.Unpark()
			return
		}
		d := time.Duration(-1)
		if next != never {
			d = time.Duration(max(0, next-m.vectors.now()))
		}
		if _, err := m.sleeper.Sleep(-1, d); err != nil {
			m.vectors.setWait(nil) // from here on no interrupt is delayed
			return
		}
	}
}

// close ends the moderator: from then on it raises no delayed interrupts.
func (m *moderator) close() {
	m.closing.Store(true)
	m.sleeper.Wake()
	<-m.done
	m.sleeper.Close()
}

// raiseDue raises the delayed interrupts that are due (vector.raiseDue), and returns when the next one is due; never:
// no other one is delayed.
func (vs *vectors) raiseDue() (next int64) {
	now := vs.now()
	next = never
	for i := range vs.v {
		if due := vs.v[i].raiseDue(now); due != 0 {
			next = min(next, due)
		}
	}
	return next
}

// raiseDue returns when the vector's delayed interrupt is due; 0: none is delayed. If that time has come, raiseDue
// raises the interrupt, as far as the vector can (change), and returns 0.
func (v *vector) raiseDue(now int64) (due int64) {
	v.mu.Lock()
	due = v.until
	if due == 0 || due > now {
		v.mu.Unlock()
		return due
	}
	v.until = 0
	v.mu.Unlock()
	v.change(func() {})
	return 0
}
