package nic

import (
	"os"
	"runtime"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// Spin bounds the busy wait of a transmit worker for its next frame.
const Spin = 50 * time.Microsecond

// workers counts the transmit workers of the process that run now. Where they outnumber the cores none of them spins.
var workers atomic.Int32

// Sleeper lets a transmit worker, which owns its thread, sleep in ppoll until it is woken: the netpoller is not involved,
// and it wakes sooner this way.
//
// The worker calls Doze, looks once more whether there is nothing to do, and then Sleep, or Awake. Whoever has something for
// it makes it visible first, and then calls Wake: one of the two sees the other.
type Sleeper struct {
	f      *os.File // counts its users: it may be closed while a waker is late
	fd     int
	dozing atomic.Bool
	b      [8]byte // room for what is read, which would be allocated each time
	fds    [1]unix.PollFd
	wait   unix.Timespec
}

// NewSleeper makes a Sleeper.
func NewSleeper() (*Sleeper, error) {
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("eventfd", err)
	}
	f := os.NewFile(uintptr(fd), "wake") // of a descriptor that blocks: it stays out of the netpoller
	_ = unix.SetNonblock(fd, true)
	return &Sleeper{f: f, fd: fd}, nil
}

var wakeUp = [8]byte{1} // what an eventfd is written

// Wake implements wire.Waker. It costs nothing if nobody sleeps, and may come late, after Close.
func (s *Sleeper) Wake() {
	if s.dozing.Load() && s.dozing.Swap(false) {
		_, _ = s.f.Write(wakeUp[:])
	}
}

// Doze says that the worker is about to sleep: from now on it can be woken.
func (s *Sleeper) Doze() { s.dozing.Store(true) }

// Awake takes Doze back. A Wake that was on its way ends the next Sleep early.
func (s *Sleeper) Awake() { s.dozing.Store(false) }

// Sleep sleeps until it is woken, or for at most d (forever if negative). It may end early.
func (s *Sleeper) Sleep(d time.Duration) error {
	defer s.Awake()
	var ts *unix.Timespec
	if d >= 0 {
		s.wait = unix.NsecToTimespec(int64(d))
		ts = &s.wait
	}
	s.fds[0] = unix.PollFd{Fd: int32(s.fd), Events: unix.POLLIN}
	n, err := unix.Ppoll(s.fds[:], ts, nil)
	if err != nil && err != unix.EINTR {
		return os.NewSyscallError("ppoll", err)
	}
	if n > 0 {
		_, _ = unix.Read(s.fd, s.b[:])
	}
	return nil
}

// Close lets go of the descriptor. Nobody sleeps any more.
func (s *Sleeper) Close() { _ = s.f.Close() }

// Work runs the body of a transmit worker on a thread of its own.
func Work(f func()) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	workers.Add(1)
	defer workers.Add(-1)
	f()
}

// MaySpin says whether there are cores to spare for a worker that waits busily; cores is GOMAXPROCS.
func MaySpin(cores int) bool { return int(workers.Load()) < cores }
