package nic

import (
	"os"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

var signal = [8]byte{1}

// sharedFD is an eventfd that its owner may close while other goroutines use it: the last of the owner and these
// goroutines closes the descriptor.
//
// It is not an os.File: how an os.File writes depends on O_NONBLOCK, a flag of the open file, which the peer shares and
// may change.
type sharedFD struct {
	fd     int
	users  atomic.Int32 // calls between enter and leave, plus 1 before close; 0: the descriptor is closed
	closed atomic.Bool  // close was called
}

// init makes s the owner of an eventfd.
func (s *sharedFD) init(fd int) {
	s.fd = fd
	s.users.Store(1)
}

// do calls f with the descriptor, unless the descriptor is closed.
func (s *sharedFD) do(f func(fd int)) {
	if s.enter() {
		f(s.fd)
		s.leave()
	}
}

// signal adds 1 to the eventfd's counter, unless the descriptor is closed. If the counter is full, signal blocks, or
// with O_NONBLOCK does nothing: a full counter is a signal already.
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

// close ends the owner's use, and does not wait for other users. Further calls do nothing.
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

// Consume reads an eventfd and reports whether there was a signal. From Linux 5.8 on it does not block, even without
// O_NONBLOCK.
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
// The owner calls Park, looks for work once more, and then sleeps, or calls Unpark. A goroutine that has work
// for the owner makes the work visible first, and then calls Wake.
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

// Park announces a sleep: the next Wake writes the eventfd.
func (e *event) Park() { e.parked.Store(true) }

// Unpark cancels Park. A Wake that is in progress may still write the eventfd, and so end the next sleep early.
func (e *event) Unpark() { e.parked.Store(false) }

func (e *event) consume() { _, _ = unix.Read(e.file.fd, e.b[:]) }

// Close closes the descriptor, or leaves that to a Wake in progress. The owner must not be asleep.
func (e *event) Close() { e.file.close() }
