package vfiouser

import "fmt"

// MaxTransfer is how many bytes a read or write of a region may have at most (max_data_xfer_size).
const MaxTransfer = 1 << 20

// maxPayload is how many bytes of payload a message may have at most: as many as the longest REGION_WRITE has.
const maxPayload = accessLen + MaxTransfer

// Lengths, in bytes, of the fixed parts of the payloads (vfio-user.rst, under each command).
const (
	versionLen    = 4
	dmaMapLen     = 32
	dmaUnmapLen   = 24
	infoLen       = 16
	regionInfoLen = 32
	irqInfoLen    = 16
	irqSetLen     = 20
	accessLen     = 16
	multiHeadLen  = 8
	multiLen      = accessLen + multiData
	multiData     = 8 // bytes of data in an entry of REGION_WRITE_MULTI
)

const (
	dmaRead  = 1 << 0
	dmaWrite = 1 << 1
)

type dmaMap struct {
	Argsz  uint32 // offset 0
	Flags  uint32 // 4
	Offset uint64 // 8: in the descriptor's file
	IOVA   uint64 // 16
	Size   uint64 // 24
}

// Flags of DMA_UNMAP: struct vfio_iommu_type1_dma_unmap (linux/vfio.h).
const (
	unmapDirty = 1 << 0 // VFIO_DMA_UNMAP_FLAG_GET_DIRTY_BITMAP
	unmapAll   = 1 << 1 // VFIO_DMA_UNMAP_FLAG_ALL
)

// dmaUnmap is the payload of DMA_UNMAP and of its reply.
type dmaUnmap struct {
	Argsz uint32 // offset 0
	Flags uint32 // 4
	IOVA  uint64 // 8
	Size  uint64 // 16
}

const (
	infoReset = 1 << 0 // VFIO_DEVICE_FLAGS_RESET
	infoPCI   = 1 << 1 // VFIO_DEVICE_FLAGS_PCI
)

// deviceInfo is the payload of DEVICE_GET_INFO and of its reply.
type deviceInfo struct {
	Argsz   uint32 // offset 0
	Flags   uint32 // 4
	Regions uint32 // 8
	IRQs    uint32 // 12
}

const (
	regionRead  = 1 << 0 // VFIO_REGION_INFO_FLAG_READ
	regionWrite = 1 << 1 // VFIO_REGION_INFO_FLAG_WRITE
)

// regionInfo is the payload of DEVICE_GET_REGION_INFO and of its reply.
type regionInfo struct {
	Argsz  uint32 // offset 0
	Flags  uint32 // 4
	Index  uint32 // 8
	Caps   uint32 // 12: offset of the capabilities; 0 in replies
	Size   uint64 // 16
	Offset uint64 // 24: for mmap; 0 in replies
}

// irqEventFD is VFIO_IRQ_INFO_EVENTFD.
const irqEventFD = 1 << 0

// irqInfo is the payload of DEVICE_GET_IRQ_INFO and of its reply.
type irqInfo struct {
	Argsz uint32 // offset 0
	Flags uint32 // 4
	Index uint32 // 8
	Count uint32 // 12
}

// Flags of DEVICE_SET_IRQS: one kind of data, one action.
const (
	irqNone    = 1 << 0 // VFIO_IRQ_SET_DATA_NONE
	irqBool    = 1 << 1 // VFIO_IRQ_SET_DATA_BOOL
	irqFDs     = 1 << 2 // VFIO_IRQ_SET_DATA_EVENTFD
	irqMask    = 1 << 3 // VFIO_IRQ_SET_ACTION_MASK
	irqUnmask  = 1 << 4 // VFIO_IRQ_SET_ACTION_UNMASK
	irqTrigger = 1 << 5 // VFIO_IRQ_SET_ACTION_TRIGGER
)

// irqSet is the payload of DEVICE_SET_IRQS, without its data.
type irqSet struct {
	Argsz uint32 // offset 0
	Flags uint32 // 4
	Index uint32 // 8
	Start uint32 // 12
	Count uint32 // 16
}

// access is a range of a region: the payload of REGION_READ, and the beginning of REGION_WRITE's payload and of an
// entry of REGION_WRITE_MULTI.
type access struct {
	offset uint64 // offset 0
	region uint32 // 8
	count  uint32 // 12
}

func (a *access) decode(b *[accessLen]byte) {
	a.offset = le.Uint64(b[0:])
	a.region = le.Uint32(b[8:])
	a.count = le.Uint32(b[12:])
}

func (a *access) String() string {
	return fmt.Sprintf("region %d [%#x, +%#x)", a.region, a.offset, a.count)
}
