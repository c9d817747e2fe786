package nic

import (
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// EventFD is an eventfd that a frontend wants us to write: the call eventfd of a virtqueue, an
// MSI-X vector. EventFDs creates and ends it; any goroutine may fire it.
//
// A write to a full eventfd blocks unless O_NONBLOCK is set (eventfd(2)). That flag belongs to the
// open file, which the frontend shares with us and may change; for writes there is no RWF_NOWAIT.
// The writer is usually another guest's worker. So the device's Monitor looks for writers that
// block in a full eventfd, takes all eventfds away from that frontend, and frees the writers by
// reading. The eventfd of an honest frontend is never full.
type EventFD struct {
	lines  *EventFDs
	file   sharedFD
	inside atomic.Int32 // number of writers
}

// Enter announces a Write.
func (l *EventFD) Enter() { l.inside.Add(1) }

// Write signals. Enter comes first.
func (l *EventFD) Write() {
	if ls := l.lines; ls.parked.Load() && ls.parked.Swap(false) {
		ls.wake()
	}
	l.file.signal()
	l.inside.Add(-1)
}

// Fire signals: Enter and Write.
func (l *EventFD) Fire() {
	l.Enter()
	l.Write()
}

// Busy reports whether a writer is between Enter and the end of Write.
func (l *EventFD) Busy() bool { return l.inside.Load() > 0 }

// Stuck reports whether a writer is blocked in Write.
func (l *EventFD) Stuck() (stuck bool) {
	if l.Busy() {
		l.file.do(func(fd int) { stuck = isFull(fd) })
	}
	return stuck
}

// drain reads the eventfd if it is full, and so lets one blocked writer go on. If it is not full,
// drain reads nothing: that would lose a signal.
func (l *EventFD) drain() {
	l.file.do(func(fd int) {
		if isFull(fd) {
			_ = unix.SetNonblock(fd, true)
			var b [8]byte
			_, _ = unix.Preadv2(fd, [][]byte{b[:]}, -1, unix.RWF_NOWAIT) // whatever the file's flags say
		}
	})
}

func isFull(fd int) bool {
	p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLOUT}}
	_, err := unix.Poll(p, 0)
	return err == nil && p[0].Revents&unix.POLLOUT == 0
}

// EventFDs are the eventfds that a device gets from its frontends, one frontend after another. The
// zero value is ready; any goroutine may call the methods.
type EventFDs struct {
	quarantined atomic.Bool
	parked      atomic.Bool // the monitor sleeps until wake is called
	wake        func()      // set before the first Park

	mu    sync.Mutex
	open  map[*EventFD]bool // under mu: not ended
	ended []*EventFD        // under mu: ended while writers were inside
}

// New makes an EventFD of fd and takes ownership of it. It returns nil, and closes fd, while the
// frontend is quarantined.
func (ls *EventFDs) New(fd int) *EventFD {
	if ls.quarantined.Load() {
		_ = unix.Close(fd)
		return nil
	}
	l := &EventFD{lines: ls}
	l.file.init(fd)
	ls.mu.Lock()
	defer ls.mu.Unlock()
	if ls.open == nil {
		ls.open = make(map[*EventFD]bool)
	}
	ls.open[l] = true
	return l
}

// End ends an EventFD whose owner does not use it any more; nil is allowed. If writers are inside,
// Free closes it later.
func (ls *EventFDs) End(l *EventFD) {
	if l == nil {
		return
	}
	ls.mu.Lock()
	defer ls.mu.Unlock()
	delete(ls.open, l)
	if l.Busy() { // the writer may be stuck
		ls.ended = append(ls.ended, l)
		return
	}
	l.file.close()
}

// OnWrite sets the function that wakes a parked monitor. The writing goroutine calls it, holding no
// lock of EventFDs; it must not block. Set it before the first Park.
func (ls *EventFDs) OnWrite(wake func()) { ls.wake = wake }

// Park lets the monitor sleep until the next write, which wakes it, so an idle device costs
// nothing. It returns false if writers are inside: then the monitor has to look again after a
// while.
func (ls *EventFDs) Park() bool {
	ls.parked.Store(true) // before the check: a writer that enters later sees it
	if ls.busy() {
		ls.parked.Store(false)
		return false
	}
	return true
}

// busy reports whether writers are inside.
func (ls *EventFDs) busy() bool {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	return len(ls.ended) > 0 || ls.anyOpen((*EventFD).Busy)
}

// anyStuck reports whether a writer is blocked in an EventFD that has not ended.
func (ls *EventFDs) anyStuck() bool {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	return ls.anyOpen((*EventFD).Stuck)
}

// anyOpen reports whether f is true for an EventFD that has not ended. The caller holds mu.
func (ls *EventFDs) anyOpen(f func(*EventFD) bool) bool {
	for l := range ls.open {
		if f(l) {
			return true
		}
	}
	return false
}

// Parked reports whether the monitor is parked: no write has come since Park.
func (ls *EventFDs) Parked() bool { return ls.parked.Load() }

// Quarantine quarantines the frontend, which has blocked writers: New refuses its eventfds until
// Release.
func (ls *EventFDs) Quarantine() { ls.quarantined.Store(true) }

// Release ends the quarantine, for the next frontend.
func (ls *EventFDs) Release() { ls.quarantined.Store(false) }

// Quarantined reports whether the frontend is quarantined.
func (ls *EventFDs) Quarantined() bool { return ls.quarantined.Load() }

// freeTime bounds one call of Free: the frontend may fill an eventfd again meanwhile.
const freeTime = 100 * time.Millisecond

// Free frees the writers of ended EventFDs, and closes those that have no writers left.
func (ls *EventFDs) Free() {
	ls.mu.Lock()
	left := ls.ended
	ls.ended = nil
	ls.mu.Unlock()
	var still []*EventFD
	for end := time.Now().Add(freeTime); len(left) > 0; left = left[1:] {
		l := left[0]
		for l.Busy() && time.Now().Before(end) {
			l.drain()
		}
		if l.Busy() {
			still = append(still, l)
			continue
		}
		l.file.close()
	}
	ls.mu.Lock()
	defer ls.mu.Unlock()
	ls.ended = append(ls.ended, still...)
}
