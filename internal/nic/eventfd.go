package nic

import (
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// EventFD is an eventfd that the device writes to signal a frontend: the call or error eventfd of a virtqueue, or that
// of an MSI-X vector. Any goroutine may fire it.
//
// A write to a full eventfd blocks unless O_NONBLOCK is set (eventfd(2)). That flag belongs to the open file,
// which the frontend shares with us and may change; Linux has no RWF_NOWAIT for writes to eventfds. So the
// device's Monitor looks for writers that block in a full eventfd. If there is one, the Monitor takes all eventfds away
// from that frontend, and frees the writers by reading.
type EventFD struct {
	eventFDs *EventFDs
	file     sharedFD
	inside   atomic.Int32
}

// Enter announces a Write.
func (e *EventFD) Enter() { e.inside.Add(1) }

// Write signals the eventfd, and first wakes a parked Monitor (EventFDs.Park). The caller must have called Enter once
// for this Write.
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

// Stuck reports whether a writer is between Enter and the end of Write, and the eventfd is full, so that the writer may
// be blocked.
func (e *EventFD) Stuck() (stuck bool) {
	if e.Busy() {
		e.file.do(func(fd int) { stuck = isFull(fd) })
	}
	return stuck
}

// drain sets O_NONBLOCK and reads the eventfd if it is full, which frees blocked writers. It does not read an eventfd
// that is not full: that would only lose a signal.
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
// call the methods except OnWrite.
type EventFDs struct {
	quarantined atomic.Bool
	parked      atomic.Bool // Park has succeeded, and no Write has begun since: the next one calls wake
	wake        func()      // set (OnWrite) before the first Park

	mu    sync.Mutex
	open  map[*EventFD]bool // under mu: descriptors that have not ended
	ended []*EventFD        // under mu: descriptors that ended while writers were inside, until Free closes them
}

// New makes an EventFD of fd, and takes ownership of fd. Between Quarantine and Release, New closes fd and
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

// End ends an EventFD that its owner gives up; nil is allowed. End closes the eventfd, or, if a writer is between Enter
// and the end of Write, leaves that to Free. A Write after that writes nothing.
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

// OnWrite sets the function, which must not block, that the first Write after Park calls. NewMonitor calls OnWrite,
// before the first Park.
func (fds *EventFDs) OnWrite(wake func()) { fds.wake = wake }

// Park makes the next Write call the function set by OnWrite, which wakes the monitor. Park undoes that and returns
// false if a writer is between Enter and the end of Write, or an ended EventFD is not closed yet.
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

// anyOpen reports whether f is true for any EventFD that has not ended. The caller holds mu.
func (fds *EventFDs) anyOpen(f func(*EventFD) bool) bool {
	for e := range fds.open {
		if f(e) {
			return true
		}
	}
	return false
}

// Parked reports whether Park has succeeded and no Write has begun since.
func (fds *EventFDs) Parked() bool { return fds.parked.Load() }

// Quarantine makes New refuse eventfds until Release.
func (fds *EventFDs) Quarantine() { fds.quarantined.Store(true) }

// Release ends the quarantine.
func (fds *EventFDs) Release() { fds.quarantined.Store(false) }

// Quarantined reports whether New refuses eventfds.
func (fds *EventFDs) Quarantined() bool { return fds.quarantined.Load() }

// freeTime bounds the time in which one call of Free drains eventfds: the frontend may fill them again and again.
const freeTime = 100 * time.Millisecond

// Free tries to free the writers of ended EventFDs, and closes the ended EventFDs that have no writers then. The others
// stay for the next call.
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
