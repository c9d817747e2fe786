package virtio

import (
	"errors"
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/dma"
)

// watcher sleeps on the kicks of receive queues, for all of a device.
type watcher struct {
	dev  *Device
	ep   int
	wake event
	done chan struct{}

	mu     sync.Mutex
	closed bool
	broken map[int]bool // vrings that have stopped, not yet reported
}

const wakeTag = -1 // epoll data of wake

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
	w := &watcher{dev: d, ep: ep, wake: wake, done: make(chan struct{}), broken: map[int]bool{}}
	if err := w.add(wake.fd, wakeTag); err != nil {
		wake.close()
		_ = unix.Close(ep)
		return nil, err
	}
	dma.Go(w.run)
	return w, nil
}

// add watches a descriptor for a vring. Edge triggered: a kick that nobody drains must not make us spin.
func (w *watcher) add(fd, index int) error {
	ev := unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLET, Fd: int32(index)}
	return os.NewSyscallError("epoll_ctl", unix.EpollCtl(w.ep, unix.EPOLL_CTL_ADD, fd, &ev))
}

// remove stops watching a descriptor; an event of it may still be under way, and finds its queue stopped.
func (w *watcher) remove(fd int) {
	_ = unix.EpollCtl(w.ep, unix.EPOLL_CTL_DEL, fd, nil)
}

// failed has the end of a queue reported. It never waits, and may be called under a queue's lock.
func (w *watcher) failed(index int) {
	w.mu.Lock()
	w.broken[index] = true
	w.mu.Unlock()
	w.wake.Wake()
}

func (w *watcher) run() {
	defer close(w.done)
	var events [16]unix.EpollEvent
	for {
		n, err := unix.EpollWait(w.ep, events[:], -1)
		if err != nil && !errors.Is(err, unix.EINTR) {
			w.dev.log.Error("watching kicks: receive queues that wait for buffers stall", "err", err)
			return
		}
		for _, ev := range events[:max(n, 0)] {
			if ev.Fd == wakeTag {
				drain(w.wake.fd)
			} else {
				w.dev.rx[ev.Fd/2].kicked()
			}
		}
		w.mu.Lock()
		closed := w.closed
		broken := w.broken
		if len(broken) > 0 {
			w.broken = map[int]bool{}
		}
		w.mu.Unlock()
		for index := range broken {
			w.dev.report(index)
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
