package virtio

import (
	"fmt"
	"log/slog"
	"time"

	"vnic.dev/vnic/internal/nic"
	"vnic.dev/vnic/internal/peer"
)

// monitored implements nic.Monitored for a Device.
type monitored Device

var _ nic.Monitored = (*monitored)(nil)

// Kicked implements nic.Monitored.
func (m *monitored) Kicked(vring int) { m.rx[vring/2].kicked() }

// Tend implements nic.Monitored: it does what queues must not do under their locks. It sets the default RSS, if
// requestRSS was called, and logs errors of queues.
func (m *monitored) Tend(time.Time) (next time.Time) {
	d := (*Device)(m)
	d.mu.Lock()
	rss, failures, memory := d.rssDue, d.failures, d.unreached
	d.rssDue, d.failures, d.unreached = false, nil, nil
	d.mu.Unlock()
	if rss {
		d.setDefaultRSS()
	}
	for index, err := range failures {
		d.stops[index].Log(d.log, slog.LevelError, "queue stopped until the driver resets it",
			"queue", queueName(index), "err", err)
	}
	for index, err := range memory {
		d.losses[index].Log(d.log, slog.LevelError, "dropping frames whose memory is not shared with the device",
			"queue", queueName(index), "err", err, "hint", peer.ShareMore)
	}
	return time.Time{}
}

func queueName(index int) string { return fmt.Sprint([2]string{"rx", "tx"}[index%2], index/2) }

// TakeEventFDs implements nic.Monitored.
func (m *monitored) TakeEventFDs() {
	d := (*Device)(m)
	for i := range d.MaxQueues() {
		d.vring(i).closeEventFDs()
	}
	d.log.Error("the frontend does not take its calls, and gets no more until it reconnects")
}

func (d *Device) requestRSS() { d.report(func() { d.rssDue = true }) }

func (d *Device) failed(index int, err error) {
	d.report(func() {
		if d.failures == nil {
			d.failures = make(map[int]error)
		}
		d.failures[index] = err
	})
}

func (d *Device) report(note func()) {
	d.mu.Lock()
	note()
	d.mu.Unlock()
	d.monitor.Wake()
}
