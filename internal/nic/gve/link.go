package gve

// linkSpeed is the default of Options.LinkSpeed, in Mbit/s.
const linkSpeed = 100_000

// reportLinkSpeed carries out REPORT_LINK_SPEED: address of a u64.
func (d *Device) reportLinkSpeed(b *body) error {
	var out [8]byte
	be.PutUint64(out[:], uint64(d.conf.LinkSpeed))
	return d.mem.write(be.Uint64(b[0:]), out[:])
}

// SetLink sets whether the link is up, which is the default. Any goroutine may call it.
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

// event raises the management vector, if there is one, so that the driver reads the device status.
func (d *Device) event() { d.vectors.fire(int(d.management.Load())) }
