package nic

import (
	"errors"
	"log/slog"
	"os"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/dma"
	"vnic.dev/vnic/internal/limits"
)

const stuckAfter = limits.StuckWrite

// Monitor is a goroutine for a device's work outside its queues: it frees writers that block in the frontend's
// eventfds, and calls the device (Monitored) after signals of watched eventfds (Watch) and when timed work is due.
type Monitor struct {
	event
	dev      Monitored
	eventFDs *EventFDs
	log      *slog.Logger
	ep       int
	closing  atomic.Bool
	done     chan struct{}

	looked time.Time // when it last looked for stuck writers, or noticed the first write after Park
	parked bool      // EventFDs.Park succeeded at the time looked: the next write wakes the monitor
}

// Monitored is a device with a Monitor. The Monitor calls these methods on its goroutine.
type Monitored interface {
	// Kicked handles a signal, or a possible one, of the eventfd that was added by Watch with this tag.
	Kicked(tag int)
	// Tend does the work that is due, and returns by when to call Tend again; the zero Time: no work is due before
	// the next Wake. The Monitor also calls Tend when nothing is due.
	Tend(now time.Time) (next time.Time)
	// TakeEventFDs ends all eventfds of the frontend (EventFDs.End); one may block a writer.
	TakeEventFDs()
}

const wakeTag = -1

// NewMonitor starts the Monitor of a device. Any goroutine may Wake it.
func NewMonitor(d Monitored, fds *EventFDs, log *slog.Logger) (*Monitor, error) {
	ep, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("epoll_create1", err)
	}
	m := &Monitor{dev: d, eventFDs: fds, log: log, ep: ep, done: make(chan struct{})}
	if err = m.open(); err == nil {
		if err = m.Watch(m.file.fd, wakeTag); err != nil {
			m.event.Close()
		}
	}
	if err != nil {
		_ = unix.Close(ep)
		return nil, err
	}
	fds.OnWrite(m.Wake)
	dma.Go(m.run)
	return m, nil
}

// Watch makes the Monitor call Kicked with tag, which is not negative, after signals of an eventfd. The
// watch is edge triggered, so that a signal that nobody consumes does not make the monitor spin.
func (m *Monitor) Watch(fd, tag int) error {
	ev := unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLET, Fd: int32(tag)}
	return os.NewSyscallError("epoll_ctl", unix.EpollCtl(m.ep, unix.EPOLL_CTL_ADD, fd, &ev))
}

// Unwatch ends Watch. Kicked may still be running, or may still be called for an earlier signal.
func (m *Monitor) Unwatch(fd int) { _ = unix.EpollCtl(m.ep, unix.EPOLL_CTL_DEL, fd, nil) }

// Close ends the Monitor, after a last Tend (without one if waiting for events has failed before).
func (m *Monitor) Close() {
	m.closing.Store(true)
	m.Wake()
	<-m.done
	m.event.Close()
	_ = unix.Close(m.ep)
}

func (m *Monitor) run() {
	defer close(m.done)
	var events [16]unix.EpollEvent
	for {
		m.Park() // before the goroutine looks for work
		closing := m.closing.Load()
		now := time.Now()
		next := m.look(now)
		if due := m.dev.Tend(now); !due.IsZero() && (next.IsZero() || due.Before(next)) {
			next = due
		}
		if closing {
			return
		}
		timeout := -1
		if !next.IsZero() {
			timeout = int(max(0, next.Sub(now)+time.Millisecond-1) / time.Millisecond)
		}
		n, err := unix.EpollWait(m.ep, events[:], timeout)
		if err != nil && !errors.Is(err, unix.EINTR) {
			m.log.Error("watching kicks: receive queues that wait for buffers stall", "err", err)
			return
		}
		for _, ev := range events[:max(n, 0)] {
			if ev.Fd == wakeTag {
				m.consume()
			} else {
				m.dev.Kicked(int(ev.Fd))
			}
		}
	}
}

// look frees stuck writers when it is time, and returns when to look next; the zero Time: at the next write.
func (m *Monitor) look(now time.Time) (next time.Time) {
	switch {
	case m.parked && !m.eventFDs.Parked(): // a write began
		m.looked, m.parked = now, false
	case !m.parked && now.Sub(m.looked) >= stuckAfter.Here():
		if m.eventFDs.anyStuck() {
			m.eventFDs.Quarantine()
			m.dev.TakeEventFDs()
		}
		m.eventFDs.Free()
		m.looked, m.parked = now, m.eventFDs.Park()
	}
	if m.parked {
		return time.Time{}
	}
	return m.looked.Add(stuckAfter.Here())
}
