package virtio

import (
	"os"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// counter has one writer at a time.
type counter struct{ v atomic.Uint64 }

func (c *counter) add(n uint64) { c.v.Store(c.v.Load() + n) }

var one = [8]byte{1} // what an eventfd is written

// signal fires an eventfd that may be closed or replaced at the same time; os.File counts its users.
func signal(f *os.File) {
	if f != nil {
		_, _ = f.Write(one[:]) // a driver's broken call is its own loss
	}
}

// event is an eventfd of our own, to end a sleep in ppoll.
type event struct{ fd int }

func newEvent() (event, error) {
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	return event{fd}, os.NewSyscallError("eventfd", err)
}

// Wake implements wire.Waker.
func (e event) Wake() { _, _ = unix.Write(e.fd, one[:]) }

func (e event) close() { _ = unix.Close(e.fd) }

// drain takes the signals of an eventfd (or whatever a frontend gave us for one) that is not blocking.
func drain(fd int) {
	var b [8]byte
	_, _ = unix.Read(fd, b[:])
}

// sleep waits in ppoll until one of two descriptors is readable, or for at most d (forever if negative). It drains what
// is readable. The netpoller is not involved: a queue's worker owns its thread, and wakes sooner this way.
func sleep(wake, kick int, d time.Duration) (woken, kicked bool, err error) {
	fds := [2]unix.PollFd{{Fd: int32(wake), Events: unix.POLLIN}, {Fd: int32(kick), Events: unix.POLLIN}}
	var ts *unix.Timespec
	if d >= 0 {
		t := unix.NsecToTimespec(int64(d))
		ts = &t
	}
	if _, err = unix.Ppoll(fds[:], ts, nil); err == unix.EINTR {
		err = nil
	}
	if err != nil {
		return false, false, os.NewSyscallError("ppoll", err)
	}
	if fds[0].Revents != 0 {
		woken = true
		drain(wake)
	}
	if fds[1].Revents != 0 {
		kicked = true
		drain(kick)
		if fds[1].Revents&(unix.POLLERR|unix.POLLHUP|unix.POLLNVAL) != 0 && fds[1].Revents&unix.POLLIN == 0 {
			err = errKickGone
		}
	}
	return woken, kicked, err
}
