package gve

// linkSpeed is the default of Options.LinkSpeed, in Mbit/s.
const linkSpeed = 100_000

// reportLinkSpeed carries out REPORT_LINK_SPEED. The body has the address (u64) to which the device writes the speed
// in Mbit/s (u64).
func (d *Device) reportLinkSpeed(b *body) error {
	var out [8]byte
	be.PutUint64(out[:], uint64(d.conf.LinkSpeed))
	return d.mem.write(be.Uint64(b[0:]), out[:])
}

// SetLink sets the link up, as it is at first, or down, and interrupts the driver (event). Any goroutine may call it.
func (d *Device) SetLink(up bool) {
	d.port.SetCarrier(up)
	if up {
		d.status.Or(statusLink)
	} else {
		d.status.And(^uint32(statusLink))
	}
	d.event()
}

// AskReset asks the driver to reset the device. Any goroutine may call it.
func (d *Device) AskReset() {
	d.status.Or(statusReset)
	d.event()
}

// event fires the management vector, if the driver has configured one, so that the driver reads the device status.
func (d *Device) event() { d.vectors.fire(int(d.management.Load())) }
