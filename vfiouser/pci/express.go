package pci

// The PCI Express capability, version 2, of an endpoint (PCI Express 5.0, 7.5.3).
const (
	capExpress  = 0x10
	expressLen  = 0x3c
	expressType = 0x02 // capabilities register: version 2, device/port type 0 (endpoint)

	devCap      = 0x04
	devCapRBER  = 1 << 15 // role-based error reporting, which every device has since 1.1
	devCtl      = 0x08
	devCtlReset = 0x2810 // relaxed ordering, no snoop, read requests of 512 bytes
	// error reporting, relaxed ordering, sizes, no snoop; no tags, no phantoms, no aux power, no reset
	devCtlMask = 0x78ff

	linkCap    = 0x0c
	linkCtl    = 0x10
	linkMask   = 0x00c8 // read completion boundary, common clock, extended synch
	linkStatus = 0x12
	link8GTx16 = 3 | 16<<4 // both in link capabilities and link status: 8 GT/s, 16 lanes
	slotClock  = 1 << 12

	devCap2    = 0x24
	devCap2CTD = 1 << 4 // completion timeout may be disabled
	devCtl2    = 0x28
	linkCap2   = 0x2c
	linkSpeeds = 7 << 1 // 2.5, 5 and 8 GT/s
	linkCtl2   = 0x30
	linkTarget = 3 // target speed: 8 GT/s
)

// addExpress adds the capability at off. There are no extended capabilities: the space above 256 is
// zero. On a root bus QEMU shows the endpoint as an integrated one, and hides the link.
func (c *Config) addExpress(off, link int) {
	c.capability(off, link, capExpress)
	d, m := c.data[off:off+expressLen], c.mask[off:off+expressLen]
	le.PutUint16(d[2:], expressType)
	le.PutUint32(d[devCap:], devCapRBER)
	le.PutUint16(d[devCtl:], devCtlReset)
	le.PutUint16(m[devCtl:], devCtlMask)
	le.PutUint32(d[linkCap:], link8GTx16)
	le.PutUint16(m[linkCtl:], linkMask)
	le.PutUint16(d[linkStatus:], link8GTx16|slotClock)
	le.PutUint32(d[devCap2:], devCap2CTD)
	le.PutUint16(m[devCtl2:], devCap2CTD)
	le.PutUint32(d[linkCap2:], linkSpeeds)
	le.PutUint16(d[linkCtl2:], linkTarget)
}
