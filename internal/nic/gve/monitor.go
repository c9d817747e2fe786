package gve

import (
	"time"

	"vnic.dev/vnic/internal/nic"
)

// monitored implements nic.Monitored for a Device.
type monitored Device

var _ nic.Monitored = (*monitored)(nil)

// Kicked implements nic.Monitored: no descriptor is watched.
func (m *monitored) Kicked(int) {}

// Tend implements nic.Monitored: it writes the stats report to the driver's memory, if it is due or counters have
// changed.
func (m *monitored) Tend(now time.Time) (next time.Time) { return m.stats.write(now) }

// TakeEventFDs implements nic.Monitored.
func (m *monitored) TakeEventFDs() {
	m.vectors.close()
	m.log.Error("the frontend does not take its interrupts, and gets no more until it reconnects")
}
