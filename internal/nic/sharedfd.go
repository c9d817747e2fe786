package nic

import (
	"os"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

var signal = [8]byte{1}

// sharedFD is an eventfd that its owner may close while other goroutines write it: the last user closes the
// descriptor.
//
// It is not an os.File, whose writes depend on O_NONBLOCK, a flag of the open file, which the peer shares.
type sharedFD struct {
	fd     int
	users  atomic.Int32 // goroutines between enter and leave, and the owner; 0: closed
	closed atomic.Bool
}

// init takes ownership of an eventfd.
func (s *sharedFD) init(fd int) {
	s.fd = fd
	s.users.Store(1)
}

// do calls f with the descriptor, unless it is closed.
func (s *sharedFD) do(f func(fd int)) {
	if s.enter() {
		f(s.fd)
		s.leave()
	}
}

// signal writes the eventfd once. It ignores errors: a full counter is a signal already.
func (s *sharedFD) signal() {
	if !s.enter() {
		return
	}
	for {
		if _, err := unix.Write(s.fd, signal[:]); err != unix.EINTR {
			break
		}
	}
	s.leave()
}

func (s *sharedFD) enter() bool {
	for {
		n := s.users.Load()
		if n == 0 {
			return false
		}
		if s.users.CompareAndSwap(n, n+1) {
			return true
		}
	}
}

func (s *sharedFD) leave() {
	if s.users.Add(-1) == 0 {
		_ = unix.Close(s.fd)
	}
}

// close releases the owner's use, and does not wait for other users.
func (s *sharedFD) close() {
	if !s.closed.Swap(true) {
		s.leave()
	}
}

// EventReader reads eventfds without an allocation for each read.
type EventReader struct {
	b   [8]byte
	iov [1][]byte
}

// Consume reads an eventfd and reports whether there was a signal. From Linux 5.8 on it never blocks, whatever
// O_NONBLOCK is.
func (r *EventReader) Consume(fd int) bool {
	r.iov[0] = r.b[:]
	n, err := unix.Preadv2(fd, r.iov[:], -1, unix.RWF_NOWAIT)
	if err == unix.EOPNOTSUPP || err == unix.ENOSYS { // Linux before 5.8
		n, err = unix.Read(fd, r.b[:])
	}
	return err == nil && n == len(r.b)
}

// event is an eventfd by which goroutines wake its owner, a goroutine that sleeps.
//
// The sleeper calls Park, looks for work once more, and then sleeps, or calls Unpark. A goroutine that has work
// for the sleeper makes the work visible first, and then calls Wake.
type event struct {
	file   sharedFD
	parked atomic.Bool
	b      [8]byte // scratch of consume
}

func (e *event) open() error {
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return os.NewSyscallError("eventfd", err)
	}
	e.file.init(fd)
	return nil
}

// Wake implements wire.Waker. It may be called after Close.
func (e *event) Wake() {
	if e.parked.Load() && e.parked.Swap(false) {
		e.file.signal()
	}
}

// Park announces a sleep: from now on Wake signals.
func (e *event) Park() { e.parked.Store(true) }

// Unpark cancels Park. A Wake in progress may end the next sleep early.
func (e *event) Unpark() { e.parked.Store(false) }

func (e *event) consume() { _, _ = unix.Read(e.file.fd, e.b[:]) }

// Close closes the descriptor. The owner must not be asleep.
func (e *event) Close() { e.file.close() }
