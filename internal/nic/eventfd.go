package nic

import (
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// EventFD is an eventfd that the device writes to signal a frontend: the call eventfd of a virtqueue, or an
// MSI-X vector. Any goroutine may fire it.
//
// A write to a full eventfd blocks unless O_NONBLOCK is set (eventfd(2)). That flag belongs to the open file,
// which the frontend shares with us and may change; Linux has no RWF_NOWAIT for writes to eventfds. So the
// device's Monitor looks for writers that block in a full eventfd, takes the eventfds away from that frontend,
// and frees the writers by reading.
type EventFD struct {
	eventFDs *EventFDs
	file     sharedFD
	inside   atomic.Int32
}

// Enter announces a Write.
func (e *EventFD) Enter() { e.inside.Add(1) }

// Write signals the eventfd. The caller must have called Enter.
func (e *EventFD) Write() {
	if fds := e.eventFDs; fds.parked.Load() && fds.parked.Swap(false) {
		fds.wake()
	}
	e.file.signal()
	e.inside.Add(-1)
}

// Fire calls Enter and Write.
func (e *EventFD) Fire() {
	e.Enter()
	e.Write()
}

// Busy reports whether a writer is between Enter and the end of Write.
func (e *EventFD) Busy() bool { return e.inside.Load() > 0 }

// Stuck reports whether a writer is inside and the eventfd is full, so that the writer may be blocked.
func (e *EventFD) Stuck() (stuck bool) {
	if e.Busy() {
		e.file.do(func(fd int) { stuck = isFull(fd) })
	}
	return stuck
}

// drain reads the eventfd if it is full, which frees a blocked writer; else a read would lose a signal.
func (e *EventFD) drain() {
	e.file.do(func(fd int) {
		if isFull(fd) {
			_ = unix.SetNonblock(fd, true)
			var b [8]byte
			_, _ = unix.Preadv2(fd, [][]byte{b[:]}, -1, unix.RWF_NOWAIT) // never blocks, whatever O_NONBLOCK is
		}
	})
}

func isFull(fd int) bool {
	p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLOUT}}
	_, err := unix.Poll(p, 0)
	return err == nil && p[0].Revents&unix.POLLOUT == 0
}

// EventFDs are the eventfds that a device gets from its frontends. The zero value is ready; any goroutine may
// call the methods.
type EventFDs struct {
	quarantined atomic.Bool
	parked      atomic.Bool // the monitor sleeps until wake is called
	wake        func()      // set (OnWrite) before the first Park

	mu    sync.Mutex
	open  map[*EventFD]bool // under mu: not ended
	ended []*EventFD        // under mu: ended while writers were inside
}

// New makes an EventFD of fd, and takes ownership of fd. While the frontend is quarantined, New closes fd and
// returns nil.
func (fds *EventFDs) New(fd int) *EventFD {
	if fds.quarantined.Load() {
		_ = unix.Close(fd)
		return nil
	}
	e := &EventFD{eventFDs: fds}
	e.file.init(fd)
	fds.mu.Lock()
	defer fds.mu.Unlock()
	if fds.open == nil {
		fds.open = make(map[*EventFD]bool)
	}
	fds.open[e] = true
	return e
}

// End ends an EventFD, which its owner does not use any more; nil is allowed. If writers are inside, Free closes
// the eventfd later.
func (fds *EventFDs) End(e *EventFD) {
	if e == nil {
		return
	}
	fds.mu.Lock()
	defer fds.mu.Unlock()
	delete(fds.open, e)
	if e.Busy() { // the writer may be stuck
		fds.ended = append(fds.ended, e)
		return
	}
	e.file.close()
}

// OnWrite sets the function that wakes a parked monitor: it must not block. The device calls OnWrite before the
// first Park.
func (fds *EventFDs) OnWrite(wake func()) { fds.wake = wake }

// Park announces that the monitor sleeps until the next write, which wakes the monitor. It returns false if
// writers are inside, or an ended EventFD is still open.
func (fds *EventFDs) Park() bool {
	fds.parked.Store(true) // before the check: a writer that enters later sees it
	if fds.busy() {
		fds.parked.Store(false)
		return false
	}
	return true
}

func (fds *EventFDs) busy() bool {
	fds.mu.Lock()
	defer fds.mu.Unlock()
	return len(fds.ended) > 0 || fds.anyOpen((*EventFD).Busy)
}

func (fds *EventFDs) anyStuck() bool {
	fds.mu.Lock()
	defer fds.mu.Unlock()
	return fds.anyOpen((*EventFD).Stuck)
}

// anyOpen reports whether f is true for an EventFD that has not ended. The caller holds mu.
func (fds *EventFDs) anyOpen(f func(*EventFD) bool) bool {
	for e := range fds.open {
		if f(e) {
			return true
		}
	}
	return false
}

// Parked reports whether no write has come since Park.
func (fds *EventFDs) Parked() bool { return fds.parked.Load() }

// Quarantine makes New refuse eventfds until Release.
func (fds *EventFDs) Quarantine() { fds.quarantined.Store(true) }

// Release ends the quarantine.
func (fds *EventFDs) Release() { fds.quarantined.Store(false) }

// Quarantined reports whether New refuses eventfds.
func (fds *EventFDs) Quarantined() bool { return fds.quarantined.Load() }

// freeTime bounds one call of Free: the frontend may fill an eventfd again and again meanwhile.
const freeTime = 100 * time.Millisecond

// Free frees writers of ended EventFDs, and closes the ones without writers.
func (fds *EventFDs) Free() {
	fds.mu.Lock()
	left := fds.ended
	fds.ended = nil
	fds.mu.Unlock()
	var still []*EventFD
	for end := time.Now().Add(freeTime); len(left) > 0; left = left[1:] {
		e := left[0]
		for e.Busy() && time.Now().Before(end) {
			e.drain()
		}
		if e.Busy() {
			still = append(still, e)
			continue
		}
		e.file.close()
	}
	fds.mu.Lock()
	defer fds.mu.Unlock()
	fds.ended = append(fds.ended, still...)
}
