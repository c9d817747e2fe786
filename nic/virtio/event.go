package virtio

import (
	"os"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/nic"
)

// counter has one writer at a time.
type counter struct{ v atomic.Uint64 }

func (c *counter) add(n uint64) { c.v.Store(c.v.Load() + n) }

var one = [8]byte{1} // what an eventfd is written

// eventFile makes a file of an eventfd: it counts its users, so that one may close it while another writes. Its writes go
// straight to the kernel and never wait in the netpoller, which os.File leaves descriptors to that block when it gets them.
func eventFile(fd int, name string) *os.File {
	_ = unix.SetNonblock(fd, false)
	f := os.NewFile(uintptr(fd), name)
	_ = unix.SetNonblock(fd, true)
	return f
}

// event is an eventfd of our own, to end a sleep in ppoll.
type event struct {
	f  *os.File
	fd int // the sleeper's
}

func newEvent() (*event, error) {
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("eventfd", err)
	}
	return &event{eventFile(fd, "wake"), fd}, nil
}

// Wake implements wire.Waker. It may come late, after close.
func (e *event) Wake() { _, _ = e.f.Write(one[:]) }

func (e *event) close() { _ = e.f.Close() }

// taker reads eventfds. It has room for what it reads, which would be allocated each time.
type taker struct {
	b   [8]byte
	iov [1][]byte
}

// take takes the signals of an eventfd and tells whether there were any. It never blocks: O_NONBLOCK belongs to the open
// file that a frontend shares with us, and it could take the flag away.
func (t *taker) take(fd int) bool {
	t.iov[0] = t.b[:]
	n, err := unix.Preadv2(fd, t.iov[:], -1, unix.RWF_NOWAIT)
	if err == unix.EOPNOTSUPP || err == unix.ENOSYS { // Linux before 5.8
		n, err = unix.Read(fd, t.b[:])
	}
	return err == nil && n == len(t.b)
}

// sleeper sleeps for a queue's worker, which owns its thread: the netpoller is not involved, and it wakes sooner this way.
type sleeper struct {
	taker
	fds  [2]unix.PollFd
	wait unix.Timespec
}

// sleep waits in ppoll until one of two descriptors is readable, or for at most d (forever if negative). It takes the
// signals.
func (s *sleeper) sleep(wake, kick int, d time.Duration) (kicked bool, err error) {
	s.fds = [2]unix.PollFd{{Fd: int32(wake), Events: unix.POLLIN}, {Fd: int32(kick), Events: unix.POLLIN}}
	var ts *unix.Timespec
	if d >= 0 {
		s.wait = unix.NsecToTimespec(int64(d))
		ts = &s.wait
	}
	if _, err = unix.Ppoll(s.fds[:], ts, nil); err == unix.EINTR {
		return false, nil
	}
	if err != nil {
		return false, os.NewSyscallError("ppoll", err)
	}
	if s.fds[0].Revents != 0 {
		s.take(wake)
	}
	return s.fds[1].Revents != 0 && s.take(kick), nil
}

// call is an eventfd that a frontend wants written: a queue's call, or its error. Any goroutine fires it, while the control
// goroutine may replace it, and the watcher take it away.
type call struct {
	lines *nic.Lines               // the device's
	line  atomic.Pointer[nic.Line] // nil: the driver polls
}

// fire writes the eventfd. A driver's broken call is its own loss.
func (c *call) fire() {
	if l := c.line.Load(); l != nil {
		l.Fire()
	}
}

// set puts a new eventfd (none if fd is negative) in the place of the old one.
func (c *call) set(fd int) {
	var l *nic.Line
	if fd >= 0 {
		l = c.lines.New(fd)
	}
	c.lines.End(c.line.Swap(l))
}

// busy says whether somebody is in fire.
func (c *call) busy() bool {
	l := c.line.Load()
	return l != nil && l.Busy()
}

// stuck says whether somebody is kept in fire.
func (c *call) stuck() bool {
	l := c.line.Load()
	return l != nil && l.Stuck()
}
