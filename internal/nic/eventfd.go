package nic

import (
	"os"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

var signal = [8]byte{1} // what an eventfd is written

// sharedFD is an eventfd that goroutines write while its owner closes it: the last of them ends it.
//
// It is no os.File. Writes of one wait in Go's netpoller, unless its descriptor blocks when the file is made. But that
// flag belongs to the open file: a read of the peer's that met it would block until the next signal.
type sharedFD struct {
	fd     int
	users  atomic.Int32 // and the owner; 0: closed
	closed atomic.Bool  // by the owner
}

// own takes an eventfd.
func (s *sharedFD) own(fd int) {
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

// signal writes it once. A full counter is a signal already, a broken eventfd its owner's loss.
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

// close is the owner's. It waits for nobody.
func (s *sharedFD) close() {
	if !s.closed.Swap(true) {
		s.leave()
	}
}

// EventReader reads eventfds that a frontend shares with us. It holds the memory that a read needs,
// which would be allocated each time.
type EventReader struct {
	b   [8]byte
	iov [1][]byte
}

// Consume takes the signals of an eventfd and tells whether there were any. It never blocks:
// O_NONBLOCK belongs to the open file, and a frontend could take the flag away.
func (r *EventReader) Consume(fd int) bool {
	r.iov[0] = r.b[:]
	n, err := unix.Preadv2(fd, r.iov[:], -1, unix.RWF_NOWAIT)
	if err == unix.EOPNOTSUPP || err == unix.ENOSYS { // Linux before 5.8
		n, err = unix.Read(fd, r.b[:])
	}
	return err == nil && n == len(r.b)
}

// event is an eventfd of our own, by which one goroutine that sleeps is woken.
//
// The sleeper calls Park, looks once more whether there is something to do, and then sleeps, or
// calls Unpark. A goroutine that has work for it makes the work visible first, and then calls Wake:
// one of the two sees the other.
type event struct {
	file   sharedFD
	parked atomic.Bool
	b      [8]byte // memory for consume
}

func (e *event) open() error {
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return os.NewSyscallError("eventfd", err)
	}
	e.file.own(fd)
	return nil
}

// Wake implements wire.Waker. It makes a system call only if the owner sleeps, and may come late,
// after Close.
func (e *event) Wake() {
	if e.parked.Load() && e.parked.Swap(false) {
		e.file.signal()
	}
}

// Park says that the owner is about to sleep: from now on it can be woken.
func (e *event) Park() { e.parked.Store(true) }

// Unpark takes Park back. A Wake that was on its way ends the next sleep early.
func (e *event) Unpark() { e.parked.Store(false) }

// consume takes the signals, if there are any.
func (e *event) consume() { _, _ = unix.Read(e.file.fd, e.b[:]) }

// Close closes the descriptor. The owner does not sleep any more.
func (e *event) Close() { e.file.close() }
