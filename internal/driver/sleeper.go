package driver

import (
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/internal/scm"
)

// sleeper lets the polling goroutine wait for the device's calls on a descriptor (an eventfd, or /dev/uioN)
// that becomes readable with each call.
//
// It sleeps in Go's network poller and not in a raw ppoll, which with a single processor blocks the other
// goroutines until the runtime's monitor notices, up to 10 ms later. wake sets a deadline in the past.
type sleeper struct {
	f     *os.File
	buf   [8]byte
	size  int // bytes of a read: 8 for an eventfd, 4 (uioEvent) for uio
	woken atomic.Bool
	// called is set when a call ends a sleep (for PCI also at first), and cleared by pci.arm.
	called bool
	ears   ears
	bell   chan struct{}
}

// ears handle a PCI device whose calls may never come. QEMU (11.1) routes INTx of devices below a PCI expander bus of
// a q35 machine to an interrupt that its ACPI tables do not list. And if a stopped guest continues (QMP cont) while
// INTx is masked because an interrupt has come, QEMU leaves the backend without a call descriptor until the guest is
// stopped and continued once more. So a sleep lasts at most nap. A device counts as deaf if there was work after two
// sleeps that nap ended, without a call between them: it is then polled every millisecond until a call comes.
type ears struct {
	nap    time.Duration // the longest sleep; 0: no limit
	heard  time.Duration // value of nap after a call
	napped bool          // nap ended the last sleep, and worked was not called since
	missed int           // number of sleeps since the last call that nap ended and that work followed
}

const (
	firstNap = 20 * time.Millisecond
	heardNap = 5 * firstNap
	deafNap  = time.Millisecond
	tooMany  = 2 // value of missed at which a device becomes deaf
)

func (e *ears) deaf() bool { return e.nap == deafNap }

// worked records that there was work, if nap ended the last sleep. It returns true when the device becomes deaf.
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

// uioEvent is how many bytes a read of a uio device returns.
const uioEvent = 4

var errUIO = fmt.Errorf("its uio device is gone: %w", unix.ENODEV)

func newSleeper(f *os.File, size int) (*sleeper, error) {
	if err := f.SetReadDeadline(time.Time{}); err != nil {
		return nil, fmt.Errorf("%s cannot be waited for: %w", f.Name(), err)
	}
	return &sleeper{f: f, size: size, bell: make(chan struct{}, 1)}, nil
}

// wake ends the current sleep, or else the next one. The caller must have stored the reason before.
func (s *sleeper) wake() {
	if s.woken.CompareAndSwap(false, true) {
		s.f.SetReadDeadline(time.Unix(1, 0))
		select {
		case s.bell <- struct{}{}:
		default:
		}
	}
}

func (s *sleeper) rest() {
	<-s.bell
	s.woken.Store(false)
}

// sleep waits for a call (it returns true), or for a wake or until nap is over (false).
func (s *sleeper) sleep() (called bool, err error) {
	if s.ears.nap > 0 {
		err = s.f.SetReadDeadline(time.Now().Add(s.ears.nap))
	}
	if err == nil && (s.ears.nap == 0 || !s.woken.Load()) {
		_, err = s.f.Read(s.buf[:s.size])
	} else if err == nil {
		err = os.ErrDeadlineExceeded
	}
	s.ears.napped = s.ears.nap > 0 && !s.woken.Load() && err != nil
	if errors.Is(err, os.ErrDeadlineExceeded) && s.ears.napped && !s.ears.deaf() && s.ready() {
		err = s.f.SetReadDeadline(time.Time{}) // a call has come; this goroutine ran late
		if err == nil {
			_, err = s.f.Read(s.buf[:s.size])
		}
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		// first the deadline, then the flag: a later wake sets both again
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

// gone reports whether the kernel has removed the device: then a read returns EIO (drivers/uio/uio.c,
// uio_read). It reads the descriptor itself: when epoll reports only EPOLLERR (seen with Linux 7.2), Go does
// not read and returns ErrNotPollable (internal/poll).
func (s *sleeper) gone() bool {
	err := scm.Control(s.f, func(fd int) error {
		_, err := unix.Read(fd, s.buf[:s.size])
		return err
	})
	return errors.Is(err, unix.EIO)
}

func (s *sleeper) ready() (there bool) {
	_ = scm.Control(s.f, func(fd int) error {
		p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		n, err := unix.Poll(p, 0)
		there = err == nil && n == 1
		return err
	})
	return there
}

func (s *sleeper) close() error { return s.f.Close() }
