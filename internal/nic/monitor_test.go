package nic_test

import (
	"log/slog"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/internal/nic"
	"vnic.dev/vnic/internal/testkit"
)

// monitored is a device that records the monitor's calls, with at most one eventfd.
type monitored struct {
	eventFDs nic.EventFDs
	line     *nic.EventFD
	kicked   chan int
	taken    chan struct{}
	tended   atomic.Int64
	due      atomic.Int64
}

func (m *monitored) Kicked(tag int) { m.kicked <- tag }

func (m *monitored) Tend(now time.Time) (next time.Time) {
	m.tended.Add(1)
	if m.due.Add(-1) >= 0 {
		return now
	}
	return time.Time{}
}

func (m *monitored) TakeEventFDs() {
	m.eventFDs.End(m.line)
	close(m.taken)
}

func newMonitored(t *testing.T) (*monitored, *nic.Monitor) {
	dev := &monitored{kicked: make(chan int), taken: make(chan struct{})}
	m := testkit.Must(nic.NewMonitor(dev, &dev.eventFDs, slog.New(slog.DiscardHandler)))(t)
	return dev, m
}

// A Monitor calls Kicked with the tag of the signaled eventfd, and calls Tend when work is due, after Wake, and in
// Close.
func TestMonitorTendsAndPassesOnKicks(t *testing.T) {
	dev, m := newMonitored(t)
	until := func(n int64) {
		t.Helper()
		for dev.tended.Load() < n {
			time.Sleep(time.Millisecond)
		}
	}
	until(1)
	dev.due.Store(50)
	m.Wake() // Tend asks 50 times for another call at once
	until(1 + 50)
	kicks := make([]int, 3)
	for i := range kicks {
		kicks[i] = eventFD(t)
		testkit.OK(t, m.Watch(kicks[i], 10+i))
	}
	for i := range kicks {
		for range 2 { // the second time, the first write has not been read
			write(t, kicks[i], one)
			if tag := <-dev.kicked; tag != 10+i {
				t.Errorf("kick %d came as %d", i, tag)
			}
		}
		m.Unwatch(kicks[i])
	}
	n := dev.tended.Load()
	m.Close()
	if dev.tended.Load() <= n {
		t.Error("no last Tend")
	}
	m.Wake() // after Close, without effect
}

// A frontend whose full eventfd blocks a writer loses its eventfds.
func TestMonitorFreesAStuckWriter(t *testing.T) {
	dev, m := newMonitored(t)
	defer m.Close()
	e, front := frontend(t, &dev.eventFDs)
	dev.line = e
	e.Fire()
	_, err := unix.Read(front, make([]byte, 8))
	testkit.OK(t, err)
	write(t, front, almost)
	testkit.OK(t, unix.SetNonblock(front, false))
	e.Fire() // returns when the monitor frees this writer
	<-dev.taken
	if !dev.eventFDs.Quarantined() {
		t.Error("the frontend is not quarantined")
	}
	for dev.eventFDs.Open() {
		time.Sleep(time.Millisecond)
	}
}
