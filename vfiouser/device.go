package vfiouser

// Regions of a PCI device (linux/vfio.h).
const (
	RegionBAR0   = 0 // VFIO_PCI_BAR0_REGION_INDEX; BAR n is region n
	RegionROM    = 6 // VFIO_PCI_ROM_REGION_INDEX
	RegionConfig = 7 // VFIO_PCI_CONFIG_REGION_INDEX
	RegionVGA    = 8 // VFIO_PCI_VGA_REGION_INDEX
	NumRegions   = 9 // VFIO_PCI_NUM_REGIONS
)

// Interrupts of a PCI device (linux/vfio.h).
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
	Regions []Region // by VFIO region index; at most NumRegions
	IRQs    []IRQ    // by VFIO IRQ index; at most NumIRQs
}

// Region is a part of a device that the client accesses, such as a BAR; with size 0 it is absent.
type Region struct {
	Size        uint64
	Read, Write bool // what the client may do
}

// IRQ is one kind of interrupt. QEMU warns of "error recovery" unless IRQErr has one vector.
type IRQ struct {
	Count int // vectors; 0: absent
}

// Device is served by a Server. Serve's goroutine calls its methods, one at a time; on that goroutine a fault
// in mapped memory is a panic, which dma.Recover can turn into an error. No method may keep a slice that it
// gets as argument. An error that wraps ErrBadMessage or dma.ErrBlocked ends the connection; the reply for another
// one, if the client wants a reply, has the errno that it wraps, or EINVAL or EFAULT for some errors of package dma, or
// else EIO.
type Device interface {
	// Info is called once for each connection, first.
	Info() Info
	// ReadRegion fills b from offset off of a region.
	ReadRegion(region int, off uint64, b []byte) error
	// WriteRegion writes b at offset off of a region.
	WriteRegion(region int, off uint64, b []byte) error

	// SetIRQ replaces a vector's eventfd by fd, which is non-blocking, or, if fd is -1, removes it. The device owns
	// fd, even if SetIRQ fails.
	SetIRQ(index, vector int, fd int) error
	// DisableIRQs removes and closes all eventfds of an IRQ index.
	DisableIRQs(index int) error

	// Reset resets the device: when it returns, the device does no DMA. Eventfds stay.
	Reset() error

	// Unmapping is called before a message removes [iova, iova+size) from the space. When it returns, the device holds no
	// Segment and no Pin in that range, has stopped the rings in it, and has left the space: afterwards the Server
	// waits until all goroutines have left it.
	Unmapping(iova, size uint64)
	// MemoryChanged is called after a message of the client has changed the space.
	MemoryChanged()

	// Disconnected is called at the end of a connection: the device stops all DMA and closes its eventfds.
	Disconnected()
}
