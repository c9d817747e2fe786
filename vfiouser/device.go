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
	Regions []Region // by VFIO region index; at most NumRegions; regions past the end of the list are absent
	IRQs    []IRQ    // by VFIO IRQ index; at most NumIRQs; indices past the end of the list are absent
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

// Device is served by a Server. Serve's goroutine calls its methods, one at a time; on that goroutine a
// fault in mapped memory is a panic, which dma.Recover can turn into an error. No method may keep a
// slice that it gets as argument. If a method returns an error, the Server replies with the errno that
// the error wraps; with EINVAL or EFAULT for errors of package dma; or else with EIO.
type Device interface {
	// The Server calls Info once for each connection, before any other method.
	Info() Info
	// ReadRegion fills b from offset off of a region. The Server has checked index, bounds and
	// permission.
	ReadRegion(region int, off uint64, b []byte) error
	// WriteRegion writes b at offset off of a region. The Server has checked index, bounds and
	// permission.
	WriteRegion(region int, off uint64, b []byte) error

	// SetIRQ replaces a vector's eventfd. The eventfd is non-blocking, unless the client, which shares
	// the open file, changes that. The device owns fd from the call on, even if SetIRQ returns an
	// error, and closes it; -1 removes the vector's eventfd.
	SetIRQ(index, vector int, fd int) error
	// DisableIRQs removes and closes all eventfds of an IRQ index.
	DisableIRQs(index int) error

	// Reset resets the device: when it returns, the device does no DMA. Eventfds stay.
	Reset() error

	// The Server calls Unmapping before it removes [iova, iova+size) from the space because the client
	// asked for that. When it returns, the device holds no Segment and no Pin in that range, and has
	// stopped the rings in it. Unmapping must leave the space that it enters (dma.Space.Enter) before
	// it returns: afterwards the Server waits until all goroutines have left the space.
	Unmapping(iova, size uint64)
	// The Server calls MemoryChanged after each message of the client that has changed the space.
	MemoryChanged()

	// The Server calls Disconnected once, when the connection has ended, before it empties the space:
	// the device stops all DMA and closes its eventfds.
	Disconnected()
}
