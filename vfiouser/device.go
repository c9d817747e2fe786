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

// Info describes a device. It must not change during a connection.
type Info struct {
	Reset   bool     // the device can be reset (VFIO_DEVICE_FLAGS_RESET)
	Regions []Region // by VFIO region index; at most NumRegions, missing ones are absent
	IRQs    []IRQ    // by VFIO IRQ index; at most NumIRQs, missing ones are absent
}

// Region is a piece of a device that the client reads and writes. A size of 0 means that it is
// absent.
type Region struct {
	Size        uint64
	Read, Write bool // what the client may do
}

// IRQ is one kind of interrupt, signalled through eventfds. QEMU warns of "error recovery" unless
// IRQErr has one vector, which the device need not signal.
type IRQ struct {
	Count int // vectors; 0: absent
}

// Device is served by a Server. Serve's goroutine calls its methods, one at a time; SetPanicOnFault
// guards that goroutine. No method may keep the slice it gets. The reply to an error has the errno
// that the error wraps, or EIO.
type Device interface {
	// Info is called once for each connection, before any other method.
	Info() Info
	// ReadRegion fills b from offset off of a region. Index, bounds and permission have been
	// checked.
	ReadRegion(region int, off uint64, b []byte) error
	// WriteRegion writes b at offset off of a region, checked in the same way.
	WriteRegion(region int, off uint64, b []byte) error

	// SetIRQ replaces a vector's eventfd. The eventfd is non-blocking, unless the client, which
	// shares the open file, changes that. The device owns fd from now on, also if it returns an
	// error, and closes it; -1 is none.
	SetIRQ(index, vector int, fd int) error
	// DisableIRQs removes all eventfds of an index. The device closes them.
	DisableIRQs(index int) error

	// Reset resets the device: when it returns, the device does no DMA. Eventfds stay.
	Reset() error

	// Unmapping is called before [iova, iova+size) leaves the space. When it returns, the device
	// holds no Segment and no Pin in that range, and has stopped the rings in it. The device must
	// not be inside the space.
	Unmapping(iova, size uint64)
	// MemoryChanged is called after each change of the space.
	MemoryChanged()

	// Disconnected is called once when the connection has ended, before the space is emptied: the
	// device stops all DMA and closes its eventfds.
	Disconnected()
}
