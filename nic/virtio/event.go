package virtio

import (
	"os"
	"sync/atomic"

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
