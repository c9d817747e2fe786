package driver

import (
	"fmt"
	"time"

	"vnic.dev/vnic/internal/limits"
)

// regs is a piece of a BAR. A register of up to 32 bits must be accessed by one instruction of its width. A copy of
// an array of 2 or 4 bytes is one load or one store on amd64 and arm64, with and without -race;
// TestRegistersAreOneAccess checks the code compiled without -race. The accessors are not inlined, so that accesses
// are neither merged nor left out.
type regs []byte

//go:noinline
func (r regs) read8(off int) uint8 { return r[off] }

//go:noinline
func (r regs) write8(off int, v uint8) { r[off] = v }

//go:noinline
func (r regs) read16(off int) uint16 {
	v := *(*[2]byte)(r[off:])
	return le.Uint16(v[:])
}

//go:noinline
func (r regs) write16(off int, v uint16) {
	var b [2]byte
	le.PutUint16(b[:], v)
	*(*[2]byte)(r[off:]) = b
}

//go:noinline
func (r regs) read32(off int) uint32 {
	v := *(*[4]byte)(r[off:])
	return le.Uint32(v[:])
}

//go:noinline
func (r regs) write32(off int, v uint32) {
	var b [4]byte
	le.PutUint32(b[:], v)
	*(*[4]byte)(r[off:]) = b
}

// Offsets in struct virtio_pci_common_cfg (virtio 1.3, 4.1.4.3), and the length that the driver needs, in bytes.
const (
	regDeviceFeatureSelect = 0  // u32
	regDeviceFeature       = 4  // u32
	regDriverFeatureSelect = 8  // u32
	regDriverFeature       = 12 // u32
	regNumQueues           = 18 // u16
	regDeviceStatus        = 20 // u8
	regConfigGeneration    = 21 // u8
	regQueueSelect         = 22 // u16
	regQueueSize           = 24 // u16
	regQueueEnable         = 28 // u16
	regQueueNotifyOff      = 30 // u16
	regQueueDesc           = 32 // u64, accessed as two u32, like the next two
	regQueueDriver         = 40 // u64
	regQueueDevice         = 48 // u64
	commonLen              = 56
)

// Device status (virtio 1.3, 2.1).
const (
	statusAcknowledge = 1
	statusDriver      = 2
	statusDriverOK    = 4
	statusFeaturesOK  = 8
	statusNeedsReset  = 64
	statusFailed      = 128
)

type common struct{ regs }

func (c common) features() uint64 {
	c.write32(regDeviceFeatureSelect, 0)
	lo := c.read32(regDeviceFeature)
	c.write32(regDeviceFeatureSelect, 1)
	return uint64(lo) | uint64(c.read32(regDeviceFeature))<<32
}

func (c common) setFeatures(f uint64) {
	c.write32(regDriverFeatureSelect, 0)
	c.write32(regDriverFeature, uint32(f))
	c.write32(regDriverFeatureSelect, 1)
	c.write32(regDriverFeature, uint32(f>>32))
}

func (c common) addStatus(bits uint8) {
	c.write8(regDeviceStatus, c.read8(regDeviceStatus)|bits)
}

// reset resets the device and waits for it (4.1.4.3.2), at most limits.DeviceReset times limits.Slow.
func (c common) reset() error {
	c.write8(regDeviceStatus, 0)
	for end := time.Now().Add(limits.DeviceReset.Here()); c.read8(regDeviceStatus) != 0; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			return fmt.Errorf("device reset did not end in %v", limits.DeviceReset.Here())
		}
	}
	return nil
}

func (c common) write64(off int, v uint64) {
	c.write32(off, uint32(v))
	c.write32(off+4, uint32(v>>32))
}

func (c common) read64(off int) uint64 {
	return uint64(c.read32(off)) | uint64(c.read32(off+4))<<32
}

// selectQueue selects queue q for the queue registers, and returns its size: the largest that the device supports,
// until setQueue sets another.
func (c common) selectQueue(q int) uint16 {
	c.write16(regQueueSelect, uint16(q))
	return c.read16(regQueueSize)
}

// setQueue sets queue q's size and addresses, and returns its queue_notify_off. It reads size and addresses back:
// with wrong ones the device would write elsewhere.
func (c common) setQueue(q int, r ringAddrs) (notifyOff uint16, err error) {
	if most := c.selectQueue(q); most < r.size {
		return 0, fmt.Errorf("virtqueue %d: at most %d entries, not %d", q, most, r.size)
	}
	c.write16(regQueueSize, r.size)
	c.write64(regQueueDesc, r.desc)
	c.write64(regQueueDriver, r.avail)
	c.write64(regQueueDevice, r.used)
	got := ringAddrs{
		size: c.read16(regQueueSize), desc: c.read64(regQueueDesc), avail: c.read64(regQueueDriver),
		used: c.read64(regQueueDevice),
	}
	if got != r {
		return 0, fmt.Errorf("%w: virtqueue %d: wrote %+v, reads back %+v", ErrBroken, q, r, got)
	}
	return c.read16(regQueueNotifyOff), nil
}

func (c common) enableQueue(q int) {
	c.selectQueue(q)
	c.write16(regQueueEnable, 1)
}
