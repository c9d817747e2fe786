package nic

import (
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// EventFD is an eventfd that a frontend wants written: the call of a virtqueue, an MSI-X vector. EventFDs
// makes it and ends it; it is fired on any goroutine.
//
// Nothing but O_NONBLOCK keeps a write to a full eventfd from blocking (eventfd(2)), and that flag
// belongs to the open file, which the frontend shares with us and may change; there is no
// RWF_NOWAIT for it. The writer is mostly another guest's worker. So the device's Monitor looks for
// writers that are blocked in a full eventfd, takes the frontend's eventfds away, and frees the
// writers by reading. The eventfd of an honest frontend is never full.
type EventFD struct {
	lines  *EventFDs
	file   sharedFD
	inside atomic.Int32 // writers
}

// Enter says that Write follows.
func (l *EventFD) Enter() { l.inside.Add(1) }

// Write signals, after Enter.
func (l *EventFD) Write() {
	if ls := l.lines; ls.parked.Load() && ls.parked.Swap(false) {
		ls.wake()
	}
	l.file.signal()
	l.inside.Add(-1)
}

// Fire signals.
func (l *EventFD) Fire() {
	l.Enter()
	l.Write()
}

// Busy says whether a writer is between Enter and the end of Write.
func (l *EventFD) Busy() bool { return l.inside.Load() > 0 }

// Stuck says whether a writer is blocked in Write.
func (l *EventFD) Stuck() (stuck bool) {
	if l.Busy() {
		l.file.do(func(fd int) { stuck = isFull(fd) })
	}
	return stuck
}

// drain reads the eventfd if it is full: else what is read is a signal that is lost. A writer that
// is blocked in it goes on, unless another one fills it first.
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

// EventFDs are the eventfds of a device, given to it by one frontend after another. The zero EventFDs is
// ready; its methods may be called on any goroutine.
type EventFDs struct {
	quarantined atomic.Bool
	parked      atomic.Bool // the monitor sleeps until wake
	wake        func()      // set before the first Park

	mu    sync.Mutex
	open  map[*EventFD]bool // under mu: made, and not ended
	ended []*EventFD        // under mu: ended with writers inside
}

// New makes an EventFD of an eventfd, which it owns from then on. nil: the frontend is quarantined, and
// fd is closed.
func (ls *EventFDs) New(fd int) *EventFD {
	if ls.quarantined.Load() {
		_ = unix.Close(fd)
		return nil
	}
	l := &EventFD{lines: ls}
	l.file.own(fd)
	ls.mu.Lock()
	defer ls.mu.Unlock()
	if ls.open == nil {
		ls.open = make(map[*EventFD]bool)
	}
	ls.open[l] = true
	return l
}

// End ends an EventFD that its owner does not use any more; nil is none. If writers are inside, Free
// closes it.
func (ls *EventFDs) End(l *EventFD) {
	if l == nil {
		return
	}
	ls.mu.Lock()
	defer ls.mu.Unlock()
	delete(ls.open, l)
	if l.Busy() { // perhaps stuck
		ls.ended = append(ls.ended, l)
		return
	}
	l.file.close()
}

// OnWrite sets the function that wakes a parked monitor: it is called on the goroutine that writes,
// under none of its locks, and never waits. Park needs it.
func (ls *EventFDs) OnWrite(wake func()) { ls.wake = wake }

// Park parks the monitor: it need not look until the next write, which wakes it. So a device that
// is idle costs nothing. false: there are writers inside, so the monitor looks again after a while.
func (ls *EventFDs) Park() bool {
	ls.parked.Store(true) // before looking: a writer that enters later sees it
	if ls.busy() {
		ls.parked.Store(false)
		return false
	}
	return true
}

// busy says whether there are writers inside.
func (ls *EventFDs) busy() bool {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	return len(ls.ended) > 0 || ls.anyOpen((*EventFD).Busy)
}

// anyStuck says whether a writer is blocked in an EventFD that has not ended.
func (ls *EventFDs) anyStuck() bool {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	return ls.anyOpen((*EventFD).Stuck)
}

// anyOpen says whether f is true of an EventFD that has not ended. The caller holds mu.
func (ls *EventFDs) anyOpen(f func(*EventFD) bool) bool {
	for l := range ls.open {
		if f(l) {
			return true
		}
	}
	return false
}

// Parked says whether the monitor is parked: there was no write since Park.
func (ls *EventFDs) Parked() bool { return ls.parked.Load() }

// Quarantine quarantines the frontend, which has blocked writers: New refuses all eventfds. Release
// ends that, for the next frontend.
func (ls *EventFDs) Quarantine() { ls.quarantined.Store(true) }

// Release ends the quarantine.
func (ls *EventFDs) Release() { ls.quarantined.Store(false) }

// Quarantined says whether the frontend is quarantined.
func (ls *EventFDs) Quarantined() bool { return ls.quarantined.Load() }

// freeTime bounds one call of Free: the frontend may fill an eventfd again meanwhile.
const freeTime = 100 * time.Millisecond

// Free frees the writers of EventFDs that have ended, and closes the EventFDs that have no writers left.
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
