package pci

import "fmt"

// The PCI Express capability, version 2, of an endpoint (PCI Express 5.0, 7.5.3).
const (
	capExpress  = 0x10
	expressLen  = 0x3c
	expressType = 0x02 // capabilities register: version 2, device/port type 0 (endpoint)

	devCap      = 0x04
	devCapRBER  = 1 << 15 // role-based error reporting
	devCtl      = 0x08
	devCtlReset = 0x2810 // relaxed ordering, no snoop, read requests of 512 bytes
	// The driver can write error reporting, relaxed ordering, the sizes of payloads and read requests, and no snoop;
	// it cannot write extended tags, phantom functions, aux power and reset.
	devCtlMask = 0x78ff

	linkCap    = 0x0c
	linkCtl    = 0x10
	linkMask   = 0x00c8 // writable bits of link control: read completion boundary, common clock, extended synch
	linkStatus = 0x12
	linkLanes  = 4 // shift of the number of lanes, in link capabilities and link status
	slotClock  = 1 << 12

	devCap2    = 0x24
	devCap2CTD = 1 << 4 // completion timeout may be disabled
	devCtl2    = 0x28
	linkCap2   = 0x2c // a bit for each speed, from bit 1
	linkCtl2   = 0x30 // target speed
)

// Link is a device's PCI Express link, trained to its full speed and width. The zero Link is none.
type Link struct {
	Generation int // 1 to 6: 2.5, 5, 8, 16, 32, 64 GT/s
	Lanes      int // 1 to 32
}

func (l Link) check() error {
	if l.Generation < 1 || l.Generation > 6 || l.Lanes < 1 || l.Lanes > 32 {
		return fmt.Errorf("a link of generation %d with %d lanes: 1 to 6, 1 to 32", l.Generation, l.Lanes)
	}
	return nil
}

func (c *Config) addExpress(off, link int, l Link) {
	c.capability(off, link, capExpress)
	d, m := c.data[off:off+expressLen], c.mask[off:off+expressLen]
	le.PutUint16(d[2:], expressType)
	le.PutUint32(d[devCap:], devCapRBER)
	le.PutUint16(d[devCtl:], devCtlReset)
	le.PutUint16(m[devCtl:], devCtlMask)
	le.PutUint32(d[linkCap:], uint32(l.Generation|l.Lanes<<linkLanes))
	le.PutUint16(m[linkCtl:], linkMask)
	le.PutUint16(d[linkStatus:], uint16(l.Generation|l.Lanes<<linkLanes)|slotClock)
	le.PutUint32(d[devCap2:], devCap2CTD)
	le.PutUint16(m[devCtl2:], devCap2CTD)
	le.PutUint32(d[linkCap2:], uint32(1<<(l.Generation+1)-2))
	le.PutUint16(d[linkCtl2:], uint16(l.Generation))
}
