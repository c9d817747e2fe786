package driver

import (
	"fmt"
	"io"
	"os"
)

// Offsets and bits in the configuration space (PCI Local Bus 3.0, 6.1 and 6.2), and its length in bytes.
const (
	pciCommand      = 0x04
	pciStatus       = 0x06
	pciCapabilities = 0x34

	commandMemory      = 1 << 1  // PCI_COMMAND_MEMORY
	commandMaster      = 1 << 2  // PCI_COMMAND_MASTER
	commandINTxDisable = 1 << 10 // PCI_COMMAND_INTX_DISABLE
	statusCapList      = 1 << 4  // PCI_STATUS_CAP_LIST

	pciConfigLen = 256
)

// pciConfig is a device's configuration space in sysfs. Reading or writing 2 aligned bytes is one access to the
// device.
type pciConfig struct{ f *os.File }

func (c pciConfig) read16(off int64) (uint16, error) {
	var b [2]byte
	if _, err := c.f.ReadAt(b[:], off); err != nil {
		return 0, fmt.Errorf("reading configuration space at %#x: %w", off, err)
	}
	return le.Uint16(b[:]), nil
}

func (c pciConfig) write16(off int64, v uint16) error {
	var b [2]byte
	le.PutUint16(b[:], v)
	if _, err := c.f.WriteAt(b[:], off); err != nil {
		return fmt.Errorf("writing configuration space at %#x: %w", off, err)
	}
	return nil
}

func (c pciConfig) setCommand(set, clear uint16) error {
	old, err := c.read16(pciCommand)
	if err != nil {
		return err
	}
	return c.write16(pciCommand, old&^clear|set)
}

func (c pciConfig) read() (b [pciConfigLen]byte, err error) {
	n, err := c.f.ReadAt(b[:], 0)
	if err == io.EOF && n > 0 {
		return b, fmt.Errorf("configuration space ends at %d of %d bytes: only root sees all of it", n, len(b))
	}
	if err != nil {
		return b, fmt.Errorf("reading configuration space: %w", err)
	}
	return b, nil
}

// Types of the virtio structures that capabilities point to (virtio 1.3, 4.1.4), and the id and lengths of such
// capabilities, in bytes.
const (
	capCommon = 1 // VIRTIO_PCI_CAP_COMMON_CFG
	capNotify = 2 // VIRTIO_PCI_CAP_NOTIFY_CFG
	capISR    = 3 // VIRTIO_PCI_CAP_ISR_CFG
	capDevice = 4 // VIRTIO_PCI_CAP_DEVICE_CFG

	capVendor    = 0x09 // PCI_CAP_ID_VNDR
	capLen       = 16   // of struct virtio_pci_cap
	capNotifyLen = 20   // of struct virtio_pci_notify_cap
	numBARs      = 6
)

// virtioCap has the fields of a capability (struct virtio_pci_cap) for the piece of a BAR in which a structure is.
type virtioCap struct {
	bar        uint8  // offset 4
	off        uint32 // 8
	length     uint32 // 12
	multiplier uint32 // 16: notify_off_multiplier; 0 if the structure is not capNotify
}

// virtioCaps finds the four structures in a configuration space, the first of each kind (4.1.4.1). It is an error if
// one is missing.
func virtioCaps(cfg *[pciConfigLen]byte) (caps [capDevice + 1]virtioCap, err error) {
	if cfg[pciStatus]&statusCapList == 0 {
		return caps, fmt.Errorf("no capabilities: not a virtio 1 device")
	}
	var found [capDevice + 1]bool
	pos := int(cfg[pciCapabilities] &^ 3)
	for range pciConfigLen / 4 { // a longer list is a loop
		if pos == 0 {
			break
		}
		if pos < 0x40 || pos > pciConfigLen-capLen {
			return caps, fmt.Errorf("capability at %#x: outside of [0x40, %#x]", pos, pciConfigLen-capLen)
		}
		c := cfg[pos:]
		next := int(c[1] &^ 3)
		kind, bar := int(c[3]), c[4]
		if c[0] == capVendor && c[2] >= capLen && kind >= capCommon && kind <= capDevice && bar < numBARs && !found[kind] {
			v := virtioCap{bar: bar, off: le.Uint32(c[8:]), length: le.Uint32(c[12:])}
			if kind == capNotify {
				if c[2] < capNotifyLen || pos > pciConfigLen-capNotifyLen {
					return caps, fmt.Errorf("notify capability at %#x: %d bytes", pos, c[2])
				}
				v.multiplier = le.Uint32(c[16:])
			}
			caps[kind], found[kind] = v, true
		}
		pos = next
	}
	for kind, name := range [...]string{capCommon: "common", capNotify: "notify", capISR: "ISR", capDevice: "device"} {
		if kind >= capCommon && !found[kind] {
			return caps, fmt.Errorf("no capability for the %s structure: not a virtio 1 device", name)
		}
	}
	return caps, nil
}
