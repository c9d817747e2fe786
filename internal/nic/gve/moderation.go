package gve

import (
	"math"
	"sync/atomic"
	"time"

	"vnic.dev/vnic/internal/nic"
)

// Interrupt moderation: between two interrupts of a vector lies at least the interval that the driver has written into
// the vector's doorbell (gve_set_itr_coalesce_usecs_dqo; `ethtool -C`). One that comes too soon is the moderator's,
// which raises it when the interval is over. A vector whose interval is 0 reads no clock.

// Bits of a vector's doorbell (gve_dqo.h, GVE_ITR_*). Bit 1 clears the pending bit, which QEMU keeps itself.
const (
	irqEnable        = 1 << 0 // GVE_ITR_ENABLE_BIT_DQO: arms the vector
	irqNoUpdate      = 3 << 3 // GVE_ITR_NO_UPDATE_DQO: the interval stays; else bits 5 to 16 have it
	irqIntervalShift = 5
	irqIntervalMask  = 1<<12 - 1
	irqIntervalUnit  = int64(2 * time.Microsecond)
)

// irqInterval is the interval in a doorbell's value, in nanoseconds. ok is false where the value leaves it as it is.
func irqInterval(db uint32) (interval int64, ok bool) {
	if db&irqNoUpdate == irqNoUpdate {
		return 0, false
	}
	return int64(db>>irqIntervalShift&irqIntervalMask) * irqIntervalUnit, true
}

// moderator is the goroutine that raises interrupts which came too soon after others. It is not the device's monitor,
// which ends a write to a frontend's eventfd that blocks: this one may be who is blocked.
type moderator struct {
	vectors *vectors
	sleeper *nic.Sleeper
	next    atomic.Int64 // when it looks next; never: when it is woken, or soon
	closing atomic.Bool
	done    chan struct{}
}

// never is no time of shape.Now.
const never = math.MaxInt64

// moderate starts the moderator of vectors.
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

// setWait says whom to tell until when an interrupt waits; nil: none waits.
func (vs *vectors) setWait(wait func(until int64)) {
	for i := range vs.v {
		v := &vs.v[i]
		v.change(func() { v.wait, v.until = wait, 0 })
	}
}

// wait has the moderator look at a time at the latest.
func (m *moderator) wait(until int64) {
	if until < m.next.Load() {
		m.sleeper.Wake()
	}
}

func (m *moderator) run() {
	defer close(m.done)
	for !m.closing.Load() {
		m.sleeper.Park() // before it looks
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
			m.vectors.setWait(nil) // who cannot sleep knows no time: from here on interrupts are as early as they come
			return
		}
	}
}

// close ends the moderator. Interrupts that wait are not raised.
func (m *moderator) close() {
	m.closing.Store(true)
	m.sleeper.Wake()
	<-m.done
	m.sleeper.Close()
}

// raiseDue raises the interrupts whose time has come, and says when the next one's comes.
func (vs *vectors) raiseDue() (next int64) {
	now := vs.now()
	next = never
	for i := range vs.v {
		if at := vs.v[i].raiseDue(now); at != 0 {
			next = min(next, at)
		}
	}
	return next
}

// raiseDue raises the vector's interrupt if its time has come, else it says when that is; 0: there is none.
func (v *vector) raiseDue(now int64) (at int64) {
	v.mu.Lock()
	at = v.until
	if at == 0 || at > now {
		v.mu.Unlock()
		return at
	}
	v.until = 0
	v.mu.Unlock()
	v.change(func() {})
	return 0
}
