package vfiouser

// Regions of a PCI device (linux/vfio.h, VFIO_PCI_*_REGION_INDEX).
const (
	RegionBAR0   = 0 // VFIO_PCI_BAR0_REGION_INDEX; BAR n is region n
	RegionROM    = 6 // VFIO_PCI_ROM_REGION_INDEX
	RegionConfig = 7 // VFIO_PCI_CONFIG_REGION_INDEX
	RegionVGA    = 8 // VFIO_PCI_VGA_REGION_INDEX
	NumRegions   = 9 // VFIO_PCI_NUM_REGIONS
)

// Interrupts of a PCI device (linux/vfio.h, VFIO_PCI_*_IRQ_INDEX).
const (
	IRQINTx = 0 // VFIO_PCI_INTX_IRQ_INDEX
	IRQMSI  = 1 // VFIO_PCI_MSI_IRQ_INDEX
	IRQMSIX = 2 // VFIO_PCI_MSIX_IRQ_INDEX
	IRQErr  = 3 // VFIO_PCI_ERR_IRQ_INDEX
	IRQReq  = 4 // VFIO_PCI_REQ_IRQ_INDEX
	NumIRQs = 5 // VFIO_PCI_NUM_IRQS
)

// Info is what a device is made of. It does not change.
type Info struct {
	Reset   bool     // the device can be reset (VFIO_DEVICE_FLAGS_RESET)
	Regions []Region // by VFIO region index; at most NumRegions, what is not there is absent
	IRQs    []IRQ    // by VFIO IRQ index; at most NumIRQs, what is not there is absent
}

// Region is a piece of a device that the client reads and writes. A size of 0 means that it is absent.
type Region struct {
	Size        uint64
	Read, Write bool // what the client may do
}

// IRQ is one kind of interrupt. It is signalled through eventfds. QEMU warns of "error recovery"
// unless IRQErr has one vector, which the device need not ever signal.
type IRQ struct {
	Count int // vectors; 0: absent
}

// Device is what a Server serves. Its methods are called from Serve's goroutine, one at a time,
// which SetPanicOnFault guards; none may keep the slice it is given. An error is answered with the
// errno that it wraps, or EIO.
type Device interface {
	// Info is asked once for each connection, before anything else.
	Info() Info
	// ReadRegion fills b from off of a region. Index, bounds and permission have been checked.
	ReadRegion(region int, off uint64, b []byte) error
	// WriteRegion writes b at off of a region, as ReadRegion.
	WriteRegion(region int, off uint64, b []byte) error

	// SetIRQ gives a vector its eventfd, in the place of the one before. It does not block, unless the
	// client, which has the same open file, changes that. The device owns fd from now on, also if it
	// returns an error, and closes it; -1 is none.
	SetIRQ(index, vector int, fd int) error
	// DisableIRQs takes all eventfds of an index away. The device closes them.
	DisableIRQs(index int) error

	// Reset resets the device: it does no DMA when this returns. Eventfds stay.
	Reset() error

	// Unmapping is called before [iova, iova+size) leaves the space. When it returns the device holds
	// no Segment and no Pin there; a ring that lies there has stopped. The device must not be inside
	// the space.
	Unmapping(iova, size uint64)
	// MemoryChanged is called after each change of the space.
	MemoryChanged()

	// Disconnected is called once when the connection has ended, with the space as it was: the device stops all DMA and
	// closes its eventfds. The space is emptied afterwards.
	Disconnected()
}
