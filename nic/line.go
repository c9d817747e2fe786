package nic

import (
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// Line is an eventfd that a frontend wants written: the call of a virtqueue, an MSI-X vector. Lines
// makes it and ends it; it is fired on any goroutine.
//
// Nothing but O_NONBLOCK keeps a write to a full eventfd from blocking (eventfd(2)), and that flag
// belongs to the open file, which the frontend shares with us and may change; there is no
// RWF_NOWAIT for it. Who writes is another guest's worker, most often. So the device's Monitor
// looks for writers that are inside of a full one, takes the frontend's eventfds away, and frees
// the writers by reading. No honest eventfd is ever full.
type Line struct {
	lines  *Lines
	f      *os.File     // counts its users: it may be closed while somebody is about to write
	inside atomic.Int32 // writers
}

// Enter says that Write follows.
func (l *Line) Enter() { l.inside.Add(1) }

// Write signals, after Enter.
func (l *Line) Write() {
	if ls := l.lines; ls.dozing.Load() && ls.dozing.Swap(false) {
		ls.wake()
	}
	_, _ = l.f.Write(signal[:]) // a full counter is a signal already, a broken eventfd its owner's loss
	l.inside.Add(-1)
}

// Fire signals.
func (l *Line) Fire() {
	l.Enter()
	l.Write()
}

// Busy says whether somebody is between Enter and the end of Write.
func (l *Line) Busy() bool { return l.inside.Load() > 0 }

// Stuck says whether somebody is kept in Write.
func (l *Line) Stuck() (stuck bool) {
	if l.Busy() {
		l.do(func(fd int) { stuck = isFull(fd) })
	}
	return stuck
}

// drain makes room in the eventfd, if it is full: else what is read is a signal that is lost. Who
// is stuck in a write to it goes on, unless somebody else is faster.
func (l *Line) drain() {
	l.do(func(fd int) {
		if isFull(fd) {
			_ = unix.SetNonblock(fd, true)
			var b [8]byte
			_, _ = unix.Preadv2(fd, [][]byte{b[:]}, -1, unix.RWF_NOWAIT) // whatever the file's flags say
		}
	})
}

// do does something with the descriptor that does not block.
func (l *Line) do(f func(fd int)) {
	if raw, err := l.f.SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) { f(int(fd)) })
	}
}

func isFull(fd int) bool {
	p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLOUT}}
	_, err := unix.Poll(p, 0)
	return err == nil && p[0].Revents&unix.POLLOUT == 0
}

// Lines are the eventfds of a device, given to it by one frontend after another. The zero Lines is
// ready; its methods may be called on any goroutine.
type Lines struct {
	hostile atomic.Bool
	dozing  atomic.Bool // the monitor sleeps until wake
	wake    func()      // set before the first Doze

	mu   sync.Mutex
	open map[*Line]bool // under mu: made, and not ended
	left []*Line        // under mu: ended with writers inside
}

// New makes a Line of an eventfd, which it owns from then on. nil: the frontend is not trusted any
// more, and fd is closed.
func (ls *Lines) New(fd int) *Line {
	if ls.hostile.Load() {
		_ = unix.Close(fd)
		return nil
	}
	l := &Line{lines: ls, f: eventFile(fd, "interrupt")}
	ls.mu.Lock()
	defer ls.mu.Unlock()
	if ls.open == nil {
		ls.open = make(map[*Line]bool)
	}
	ls.open[l] = true
	return l
}

// End ends a Line that its owner has let go of; nil is none. If there are writers inside, Free closes it.
func (ls *Lines) End(l *Line) {
	if l == nil {
		return
	}
	ls.mu.Lock()
	defer ls.mu.Unlock()
	delete(ls.open, l)
	if l.Busy() { // perhaps stuck
		ls.left = append(ls.left, l)
		return
	}
	_ = l.f.Close()
}

// Watched says what wakes the monitor that dozes: it is called on the goroutine that writes, under
// none of its locks, and never waits. Without it there is no Doze.
func (ls *Lines) Watched(wake func()) { ls.wake = wake }

// Doze says that the monitor has no need to look, until the next one writes: that wakes it. So a
// device that is idle costs nothing. false: there are writers inside, so it looks again after a
// while.
func (ls *Lines) Doze() bool {
	ls.dozing.Store(true) // before looking: who comes in after sees it
	if ls.busy() {
		ls.dozing.Store(false)
		return false
	}
	return true
}

// busy says whether there are writers inside.
func (ls *Lines) busy() bool {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	return len(ls.left) > 0 || ls.anyOpen((*Line).Busy)
}

// anyStuck says whether somebody is kept in a Line that has not ended.
func (ls *Lines) anyStuck() bool {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	return ls.anyOpen((*Line).Stuck)
}

// anyOpen says whether f is true of a Line that has not ended. The caller holds mu.
func (ls *Lines) anyOpen(f func(*Line) bool) bool {
	for l := range ls.open {
		if f(l) {
			return true
		}
	}
	return false
}

// Dozing says whether nobody has written since Doze.
func (ls *Lines) Dozing() bool { return ls.dozing.Load() }

// Distrust has New refuse all eventfds, as the frontend was caught at keeping writers; Trust ends
// it: there is another one.
func (ls *Lines) Distrust() { ls.hostile.Store(true) }

// Trust takes Distrust back.
func (ls *Lines) Trust() { ls.hostile.Store(false) }

// Distrusted says which of the two it was last.
func (ls *Lines) Distrusted() bool { return ls.hostile.Load() }

// freeTime is how long at most Free works at one go: others may fill an eventfd again meanwhile.
const freeTime = 100 * time.Millisecond

// Free frees the writers of Lines that have ended, and closes those that nobody writes to any more.
func (ls *Lines) Free() {
	ls.mu.Lock()
	left := ls.left
	ls.left = nil
	ls.mu.Unlock()
	var still []*Line
	for end := time.Now().Add(freeTime); len(left) > 0; left = left[1:] {
		l := left[0]
		for l.Busy() && time.Now().Before(end) {
			l.drain()
		}
		if l.Busy() {
			still = append(still, l)
			continue
		}
		_ = l.f.Close()
	}
	ls.mu.Lock()
	defer ls.mu.Unlock()
	ls.left = append(ls.left, still...)
}
