package driver

import (
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// sleeper is where the polling goroutine waits for the device's calls: on a descriptor (an eventfd, or /dev/uioN)
// that becomes readable with each.
//
// It sleeps in Go's own poller and not in a raw ppoll: a guest may have a single processor, and a raw system call
// keeps it from the other goroutines until the runtime's monitor notices, up to 10 ms later. A wake of our own is
// a deadline in the past: no system call, and no second descriptor in the set.
type sleeper struct {
	f     *os.File
	buf   [8]byte
	size  int // bytes that a read returns: 8 of an eventfd, 4 of uio
	woken atomic.Bool
	// called tells that the device's call has ended a sleep since this was last cleared; the sleeping goroutine's.
	called bool
	ears   ears
	bell   chan struct{} // of capacity 1: rung by wake, for rest
}

// ears are for calls of a device that may never come: QEMU (11.1) routes INTx of what is below a PCI expander bus of a
// q35 machine to an interrupt that its ACPI tables do not name; and where INTx is masked for an interrupt that has come
// when a guest goes on that was stopped (QMP cont), it takes the call from the backend, until the guest is stopped
// again. So a sleep ends by itself after a while, a longer one after the first call. Where there was something to do,
// twice, the device is not heard: it is looked at every millisecond until a call comes. They are the sleeping
// goroutine's.
type ears struct {
	nap    time.Duration // the longest sleep; 0: no end
	heard  time.Duration // nap after a call
	napped bool          // the last sleep ended by itself
	missed int           // sleeps that did, with something to do
}

const (
	firstNap = 20 * time.Millisecond
	heardNap = 5 * firstNap
	deafNap  = time.Millisecond
	tooMany  = 2 // missed
)

// deaf says whether the device is not heard.
func (e *ears) deaf() bool { return e.nap == deafNap }

// worked tells that there was something to do after a sleep. It returns true when the device is not heard, once.
func (e *ears) worked() bool {
	if !e.napped {
		return false
	}
	e.napped = false
	e.missed++
	if e.missed == tooMany {
		e.nap = deafNap
		return true
	}
	return false
}

// uioEvent is how many bytes a read of a uio device gives.
const uioEvent = 4

var errUIO = fmt.Errorf("its uio device is gone: %w", unix.ENODEV)

func newSleeper(f *os.File, size int) (*sleeper, error) {
	if err := f.SetReadDeadline(time.Time{}); err != nil {
		return nil, fmt.Errorf("%s cannot be waited for: %w", f.Name(), err)
	}
	return &sleeper{f: f, size: size, bell: make(chan struct{}, 1)}, nil
}

// wake ends the sleep, or the next one. What it is about must be stored before.
func (s *sleeper) wake() {
	if s.woken.CompareAndSwap(false, true) {
		s.f.SetReadDeadline(time.Unix(1, 0)) // an error means that it is closed, which ends a sleep as well
		select {
		case s.bell <- struct{}{}:
		default:
		}
	}
}

// rest waits for wake alone: the descriptor is of no use any more.
func (s *sleeper) rest() {
	<-s.bell
	s.woken.Store(false)
}

// sleep waits for a call of the device (true), or for wake or the end of a nap (false).
func (s *sleeper) sleep() (called bool, err error) {
	if s.ears.nap > 0 {
		err = s.f.SetReadDeadline(time.Now().Add(s.ears.nap)) // instead of a wake's that came before: woken says so
	}
	if err == nil && (s.ears.nap == 0 || !s.woken.Load()) {
		_, err = s.f.Read(s.buf[:s.size])
	} else if err == nil {
		err = os.ErrDeadlineExceeded
	}
	s.ears.napped = s.ears.nap > 0 && !s.woken.Load() && err != nil
	if errors.Is(err, os.ErrDeadlineExceeded) && s.ears.napped && !s.ears.deaf() && s.ready() {
		err = s.f.SetReadDeadline(time.Time{}) // the call was there, and this goroutine late: it is read at once
		if err == nil {
			_, err = s.f.Read(s.buf[:s.size])
		}
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		// First the deadline, then the flag: a wake from here on sets both again, and a wake before it is one
		// whose cause our caller sees when we return.
		err = s.f.SetReadDeadline(time.Time{})
		s.woken.Store(false)
		return false, err
	}
	if err == nil {
		s.called, s.ears = true, ears{nap: s.ears.heard, heard: s.ears.heard}
	}
	if err != nil && s.size == uioEvent && s.gone() {
		err = errUIO
	}
	return err == nil, err
}

// gone says whether the kernel has taken the device away: a read gives EIO then (drivers/uio/uio.c, uio_read). It reads
// the descriptor itself, because the error of Go's read may name no errno: when epoll reports EPOLLERR alone (seen with
// Linux 7.2), Go does not read at all and returns ErrNotPollable (internal/poll).
func (s *sleeper) gone() bool {
	c, err := s.f.SyscallConn()
	if err != nil {
		return false
	}
	cerr := c.Control(func(fd uintptr) { _, err = unix.Read(int(fd), s.buf[:s.size]) })
	return cerr == nil && errors.Is(err, unix.EIO)
}

// ready says whether a call of the device is there.
func (s *sleeper) ready() (there bool) {
	c, err := s.f.SyscallConn()
	if err != nil {
		return false
	}
	_ = c.Control(func(fd uintptr) {
		p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		n, err := unix.Poll(p, 0)
		there = err == nil && n == 1
	})
	return there
}

func (s *sleeper) close() error { return s.f.Close() }
