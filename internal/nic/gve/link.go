package gve

// linkSpeed is what the driver is told, in Mbit/s, unless Options say otherwise: what a machine's memory does.
const linkSpeed = 100_000

// reportLinkSpeed carries out REPORT_LINK_SPEED: where a u64 goes.
func (d *Device) reportLinkSpeed(b *body) error {
	var out [8]byte
	be.PutUint64(out[:], uint64(d.conf.LinkSpeed))
	return d.mem.write(be.Uint64(b[0:]), out[:])
}

// SetLink takes the link down, or up again as it is at first. While it is down nothing is received, and what is sent is
// dropped. Any goroutine may call it.
func (d *Device) SetLink(up bool) {
	d.port.SetCarrier(up)
	if up {
		d.status.Or(statusLink)
	} else {
		d.status.And(^uint32(statusLink))
	}
	d.event()
}

// AskReset asks the driver to reset the device, as it also does by itself when one of its queues
// has stopped for an error. Any goroutine may call it.
func (d *Device) AskReset() {
	d.status.Or(statusReset)
	d.event()
}

// event has the driver look at the device's status.
func (d *Device) event() { d.vectors.fire(int(d.management.Load())) }
