package nic

import (
	"os"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

var signal = [8]byte{1} // what an eventfd is written

// eventFile makes a file of an eventfd, which it owns from then on. The file counts its users: one
// may close it while another writes. Its writes go straight to the kernel and never wait in the
// netpoller, to which os.NewFile leaves only descriptors that do not block when it gets them.
func eventFile(fd int, name string) *os.File {
	_ = unix.SetNonblock(fd, false)
	f := os.NewFile(uintptr(fd), name)
	_ = unix.SetNonblock(fd, true)
	return f
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
	f      *os.File
	fd     int
	parked atomic.Bool
	b      [8]byte // memory for consume
}

func (e *event) open() error {
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
	if err != nil {
		return os.NewSyscallError("eventfd", err)
	}
	e.fd, e.f = fd, eventFile(fd, "wake")
	return nil
}

// Wake implements wire.Waker. It makes a system call only if the owner sleeps, and may come late,
// after Close.
func (e *event) Wake() {
	if e.parked.Load() && e.parked.Swap(false) {
		_, _ = e.f.Write(signal[:])
	}
}

// Park says that the owner is about to sleep: from now on it can be woken.
func (e *event) Park() { e.parked.Store(true) }

// Unpark takes Park back. A Wake that was on its way ends the next sleep early.
func (e *event) Unpark() { e.parked.Store(false) }

// consume takes the signals, if there are any.
func (e *event) consume() { _, _ = unix.Read(e.fd, e.b[:]) }

// Close closes the descriptor. The owner does not sleep any more.
func (e *event) Close() { _ = e.f.Close() }
