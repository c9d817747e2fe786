package gve

import (
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/internal/nic/nictest"
	"vnic.dev/vnic/internal/testkit"
)

// usecs returns the doorbell value that arms a vector with an interval of n microseconds, rounded down to 2, as
// gve_setup_itr_interval_dqo does.
func usecs(n uint32) uint32 { return irqEnable | n>>1&irqIntervalMask<<irqIntervalShift }

// rearm is the doorbell value that Linux writes at the end of a NAPI poll: it keeps the interval.
const rearm = irqEnable | irqNoUpdate

// stepped are vectors with a clock set by the test, and with the test in place of a moderator.
type stepped struct {
	*testing.T
	vectors
	time  int64
	reads int     // of the clock
	waits []int64 // times until which interrupts were delayed
	e     event   // the eventfd of vector 0
}

func newStepped(t *testing.T) *stepped {
	t.Helper()
	s := &stepped{T: t, time: 1e9, e: event{nictest.EventFD(t)}}
	s.init(3, func() int64 { s.reads++; return s.time })
	s.OnWrite(func() {})
	s.setWait(func(until int64) { s.waits = append(s.waits, until) })
	fd, err := unix.FcntlInt(uintptr(s.e.fd), unix.F_DUPFD_CLOEXEC, 0)
	testkit.NoError(t, err)
	s.setFD(0, fd)
	t.Cleanup(func() { s.close(); s.Free() })
	return s
}

// set sets the time to n microseconds after the start, and raises the delayed interrupts that are due.
func (s *stepped) set(n int64) {
	s.time = 1e9 + n*1000
	s.raiseDue()
}

func (s *stepped) expect(what string, n uint64) {
	s.Helper()
	testkit.Equal(s, "interrupts "+what, s.e.fired(), n)
}

// Invariant: nic/gve: Interrupts of a vector are at least the requested interval apart, and the
// last one is raised.
func TestInterruptModeration(t *testing.T) {
	s := newStepped(t)
	s.arm(0, usecs(20))
	s.fire(0)
	s.expect("the first", 1)
	s.arm(0, rearm)
	for i := range int64(19) {
		s.set(i)
		s.fire(0)
		s.fire(0)
	}
	s.expect("within the interval", 0)
	if len(s.waits) == 0 || slices.Max(s.waits) != 1e9+20_000 || slices.Min(s.waits) != 1e9+20_000 {
		t.Errorf("waits until %v", s.waits)
	}
	s.set(20)
	s.expect("when it is over", 1)
	s.set(100)
	s.expect("with nothing new", 0)
	s.arm(0, rearm)
	s.fire(0)
	s.expect("long after", 1)

	// An interrupt of a masked vector waits until the driver has armed the vector and the interval is over.
	s.fire(0)
	s.set(120)
	s.expect("masked, and the interval is over", 0)
	s.arm(0, rearm)
	s.expect("armed then", 1)
	s.arm(0, rearm)
	s.fire(0)
	s.arm(0, 0|irqNoUpdate) // masked while an interrupt is delayed
	s.set(140)
	s.expect("masked while it waited", 0)
	s.arm(0, rearm)
	s.expect("armed again", 1)

	// A new interval, shorter or longer, applies to the delayed interrupt, and counts from the last interrupt.
	s.arm(0, usecs(8190))
	s.fire(0)
	s.set(200)
	s.expect("with the longest interval", 0)
	s.arm(0, usecs(60))
	s.expect("after 60 us", 1)
	s.arm(0, usecs(2))
	s.fire(0)
	s.arm(0, usecs(100))
	s.set(202)
	s.expect("at its old time", 0)
	s.set(300)
	s.expect("at its new time", 1)
	testkit.Equal(t, "looks again", s.raiseDue(), int64(never))
}

// Invariant: hot path: An interrupt without moderation reads no clock.
func TestNoModerationNoClock(t *testing.T) {
	s := newStepped(t)
	for range 10 {
		s.arm(0, irqEnable)
		s.fire(0)
		s.expect("each time", 1)
	}
	testkit.Equal(t, "reads of the clock", s.reads, 0)
	s.arm(0, usecs(2)) // negative control: with an interval the clock is read
	s.fire(0)
	if s.reads == 0 {
		t.Error("the clock is not read with an interval either")
	}
}

// The management vector's interrupts are not delayed, and a reset clears intervals and delayed interrupts.
func TestModerationEnds(t *testing.T) {
	s := newStepped(t)
	s.arm(0, usecs(8190))
	s.setManagement(0)
	s.fire(0)
	s.fire(0)
	s.expect("of the management", 2)
	s.setManagement(-1)
	s.arm(0, rearm)
	s.fire(0)
	s.expect("the first", 1)
	s.arm(0, rearm)
	s.fire(0)
	s.reset()
	s.set(10_000)
	s.arm(0, irqEnable)
	s.expect("after reset", 0)
	s.fire(0)
	s.arm(0, irqEnable)
	s.fire(0)
	s.expect("without an interval", 2)
}

func TestWithoutModerator(t *testing.T) {
	s := newStepped(t)
	s.arm(0, usecs(8190))
	s.fire(0)
	s.arm(0, rearm)
	s.fire(0)
	s.expect("the first", 1)
	s.setWait(nil)
	s.expect("what waited", 1)
}

// Invariant: nic/gve: Interrupts of a vector are at least the requested interval apart, and the
// last one is raised.
func TestModeratedInterruptsCome(t *testing.T) {
	c := newConfigured(t, 2)
	var es []*event
	for v := range 4 {
		es = append(es, c.irq(v))
		c.bell(irqDoorbells+uint32(v), usecs(20+100*uint32(v)))
	}
	for range 200 {
		for v, e := range es {
			c.dev.vectors.fire(v)
			waitEvent(t, e)
			c.bell(irqDoorbells+uint32(v), rearm)
		}
	}
}

func waitEvent(t *testing.T, e *event) {
	t.Helper()
	fds := []unix.PollFd{{Fd: int32(e.fd), Events: unix.POLLIN}}
	for {
		n, err := unix.Poll(fds, 60_000)
		if err == unix.EINTR {
			continue
		}
		if n != 1 || e.fired() == 0 {
			t.Fatalf("no interrupt for a minute: %v", err)
		}
		return
	}
}

// A goroutine fires interrupts, and the moderator raises delayed ones, while the driver arms the vector and changes
// intervals.
func TestModerationUnderRace(t *testing.T) {
	c := newConfigured(t, 1)
	e := c.irq(0)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for range 5000 {
			c.dev.vectors.fire(0)
		}
	}()
	for i, on := uint32(0), true; on; i++ {
		c.dev.vectors.arm(0, usecs(i%3*2))
		e.fired()
		select {
		case <-done:
			on = false
		default:
		}
	}
	c.dev.vectors.fire(0)
	c.dev.vectors.arm(0, usecs(40))
	waitEvent(t, e)
}
