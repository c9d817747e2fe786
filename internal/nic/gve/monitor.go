package gve

import (
	"time"

	"vnic.dev/vnic/internal/nic"
)

// monitored implements nic.Monitored for a Device.
type monitored Device

var _ nic.Monitored = (*monitored)(nil)

// Kicked implements nic.Monitored. It does nothing: the device watches no eventfds (nic.Monitor.Watch).
func (m *monitored) Kicked(int) {}

// Tend implements nic.Monitored: if the driver has asked for stats reports, and one is due or counters have changed,
// it writes a report to the driver's memory.
func (m *monitored) Tend(now time.Time) (next time.Time) { return m.stats.write(now) }

// TakeEventFDs implements nic.Monitored.
func (m *monitored) TakeEventFDs() {
	m.vectors.close()
	m.log.Error("the frontend does not take its interrupts, and gets no more until it reconnects")
}
