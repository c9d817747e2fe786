package virtio

import (
	"errors"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/dma"
	"vnic.dev/vnic/nic"
)

// watcher sleeps on the kicks of receive queues, for all of a device, says why queues stopped, and frees those who are
// stuck in a call.
type watcher struct {
	dev  *Device
	ep   int
	wake *event
	done chan struct{}

	mu     sync.Mutex
	closed bool
	spread bool          // a queue has got its first buffers
	broken map[int]error // vrings that have stopped, and why, not yet reported
}

const (
	wakeTag = -1 // epoll data of wake
	// stuckAfter is how long at most somebody is kept in a call that does not return; twice that in the worst case.
	stuckAfter = 500 * time.Millisecond
)

func newWatcher(d *Device) (*watcher, error) {
	ep, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("epoll_create1", err)
	}
	wake, err := newEvent()
	if err != nil {
		_ = unix.Close(ep)
		return nil, err
	}
	w := &watcher{dev: d, ep: ep, wake: wake, done: make(chan struct{})}
	if err := w.ctl(wake.fd, wakeTag); err != nil {
		wake.close()
		_ = unix.Close(ep)
		return nil, err
	}
	d.lines.Watched(wake.Wake)
	dma.Go(w.run)
	return w, nil
}

// ctl adds a descriptor. Edge triggered: a kick that nobody takes must not make us spin. Each write to an eventfd is an
// edge, and one that is readable already is one when it is added.
func (w *watcher) ctl(fd, index int) error {
	ev := unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLET, Fd: int32(index)}
	return os.NewSyscallError("epoll_ctl", unix.EpollCtl(w.ep, unix.EPOLL_CTL_ADD, fd, &ev))
}

// add watches the kick of a receive queue.
func (w *watcher) add(fd, index int) error {
	return w.ctl(fd, index)
}

// remove stops watching a kick; an event of it may still be under way, and finds its queue stopped, or no signal.
func (w *watcher) remove(fd int) {
	_ = unix.EpollCtl(w.ep, unix.EPOLL_CTL_DEL, fd, nil)
}

// fed has flows spread anew: a queue has got its first buffers. It never waits.
func (w *watcher) fed() {
	w.mu.Lock()
	w.spread = true
	w.mu.Unlock()
	w.wake.Wake()
}

// failed has the end of a queue reported. It never waits.
func (w *watcher) failed(index int, err error) {
	w.mu.Lock()
	if w.broken == nil {
		w.broken = make(map[int]error)
	}
	w.broken[index] = err
	w.mu.Unlock()
	w.wake.Wake()
}

func (w *watcher) run() {
	defer close(w.done)
	var events [16]unix.EpollEvent
	var in nic.EventReader
	timeout := -1
	looked, dozes := time.Now(), false
	for {
		n, err := unix.EpollWait(w.ep, events[:], timeout)
		if err != nil && !errors.Is(err, unix.EINTR) {
			w.dev.log.Error("watching kicks: receive queues that wait for buffers stall", "err", err)
			return
		}
		for _, ev := range events[:max(n, 0)] {
			if ev.Fd == wakeTag {
				in.Consume(w.wake.fd)
			} else {
				w.dev.rx[ev.Fd/2].kicked()
			}
		}
		switch now := time.Now(); {
		case dozes && !w.dev.lines.Dozing(): // somebody has called: is he stuck in it, a moment from now?
			looked, dozes = now, false
		case !dozes && now.Sub(looked) >= stuckAfter:
			w.dev.freeCallers()
			looked, dozes = now, w.dev.lines.Doze(w.dev.calling)
		}
		w.mu.Lock()
		closed := w.closed
		if timeout = -1; !dozes && w.dev.lines.Open() {
			timeout = int(stuckAfter / time.Millisecond)
		}
		broken, spread := w.broken, w.spread
		w.broken, w.spread = nil, false
		w.mu.Unlock()
		if spread {
			w.dev.spread()
		}
		for index, err := range broken {
			w.dev.report(index, err)
		}
		if closed {
			return
		}
	}
}

func (w *watcher) close() {
	w.mu.Lock()
	w.closed = true
	w.mu.Unlock()
	w.wake.Wake()
	<-w.done
	w.wake.close()
	_ = unix.Close(w.ep)
}
