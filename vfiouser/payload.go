package vfiouser

import "fmt"

// MaxTransfer is how many bytes a read or write of a region may have (max_data_xfer_size, its default).
const MaxTransfer = 1 << 20

// maxPayload is that of the longest message: a REGION_WRITE.
const maxPayload = accessLen + MaxTransfer

// Lengths of the fixed parts of the payloads (vfio-user.rst, under each command).
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
	multiData     = 8 // bytes of data in an entry of REGION_WRITE_MULTI, however few it means
)

// Flags of DMA_MAP.
const (
	dmaRead  = 1 << 0 // readable
	dmaWrite = 1 << 1 // writeable
)

// dmaMap is the payload of DMA_MAP.
type dmaMap struct {
	argsz  uint32 // offset 0
	flags  uint32 // 4
	offset uint64 // 8: in the file
	iova   uint64 // 16
	size   uint64 // 24
}

func (d *dmaMap) decode(b *[dmaMapLen]byte) {
	d.argsz = le.Uint32(b[0:])
	d.flags = le.Uint32(b[4:])
	d.offset = le.Uint64(b[8:])
	d.iova = le.Uint64(b[16:])
	d.size = le.Uint64(b[24:])
}

func (d *dmaMap) encode(b *[dmaMapLen]byte) {
	le.PutUint32(b[0:], d.argsz)
	le.PutUint32(b[4:], d.flags)
	le.PutUint64(b[8:], d.offset)
	le.PutUint64(b[16:], d.iova)
	le.PutUint64(b[24:], d.size)
}

// Flags of DMA_UNMAP: those of struct vfio_iommu_type1_dma_unmap (linux/vfio.h). The document has none, QEMU sends the
// second.
const (
	unmapDirty = 1 << 0 // VFIO_DMA_UNMAP_FLAG_GET_DIRTY_BITMAP
	unmapAll   = 1 << 1 // VFIO_DMA_UNMAP_FLAG_ALL
)

// dmaUnmap is the payload of DMA_UNMAP and of its reply.
type dmaUnmap struct {
	argsz uint32 // offset 0
	flags uint32 // 4
	iova  uint64 // 8
	size  uint64 // 16
}

func (d *dmaUnmap) decode(b *[dmaUnmapLen]byte) {
	d.argsz = le.Uint32(b[0:])
	d.flags = le.Uint32(b[4:])
	d.iova = le.Uint64(b[8:])
	d.size = le.Uint64(b[16:])
}

func (d *dmaUnmap) encode(b *[dmaUnmapLen]byte) {
	le.PutUint32(b[0:], d.argsz)
	le.PutUint32(b[4:], d.flags)
	le.PutUint64(b[8:], d.iova)
	le.PutUint64(b[16:], d.size)
}

// Flags of DEVICE_GET_INFO.
const (
	infoReset = 1 << 0 // VFIO_DEVICE_FLAGS_RESET
	infoPCI   = 1 << 1 // VFIO_DEVICE_FLAGS_PCI
)

// deviceInfo is the payload of DEVICE_GET_INFO and of its reply.
type deviceInfo struct {
	argsz   uint32 // offset 0
	flags   uint32 // 4
	regions uint32 // 8
	irqs    uint32 // 12
}

func (d *deviceInfo) decode(b *[infoLen]byte) {
	d.argsz = le.Uint32(b[0:])
	d.flags = le.Uint32(b[4:])
	d.regions = le.Uint32(b[8:])
	d.irqs = le.Uint32(b[12:])
}

func (d *deviceInfo) encode(b *[infoLen]byte) {
	le.PutUint32(b[0:], d.argsz)
	le.PutUint32(b[4:], d.flags)
	le.PutUint32(b[8:], d.regions)
	le.PutUint32(b[12:], d.irqs)
}

// Flags of DEVICE_GET_REGION_INFO.
const (
	regionRead  = 1 << 0 // VFIO_REGION_INFO_FLAG_READ
	regionWrite = 1 << 1 // VFIO_REGION_INFO_FLAG_WRITE
)

// regionInfo is the payload of DEVICE_GET_REGION_INFO and of its reply.
type regionInfo struct {
	argsz  uint32 // offset 0
	flags  uint32 // 4
	index  uint32 // 8
	caps   uint32 // 12: where capabilities begin
	size   uint64 // 16
	offset uint64 // 24: for mmap
}

func (r *regionInfo) decode(b *[regionInfoLen]byte) {
	r.argsz = le.Uint32(b[0:])
	r.flags = le.Uint32(b[4:])
	r.index = le.Uint32(b[8:])
	r.caps = le.Uint32(b[12:])
	r.size = le.Uint64(b[16:])
	r.offset = le.Uint64(b[24:])
}

func (r *regionInfo) encode(b *[regionInfoLen]byte) {
	le.PutUint32(b[0:], r.argsz)
	le.PutUint32(b[4:], r.flags)
	le.PutUint32(b[8:], r.index)
	le.PutUint32(b[12:], r.caps)
	le.PutUint64(b[16:], r.size)
	le.PutUint64(b[24:], r.offset)
}

// irqEventFD is the one flag of DEVICE_GET_IRQ_INFO that a device here has: VFIO_IRQ_INFO_EVENTFD.
const irqEventFD = 1 << 0

// irqInfo is the payload of DEVICE_GET_IRQ_INFO and of its reply.
type irqInfo struct {
	argsz uint32 // offset 0
	flags uint32 // 4
	index uint32 // 8
	count uint32 // 12
}

func (i *irqInfo) decode(b *[irqInfoLen]byte) {
	i.argsz = le.Uint32(b[0:])
	i.flags = le.Uint32(b[4:])
	i.index = le.Uint32(b[8:])
	i.count = le.Uint32(b[12:])
}

func (i *irqInfo) encode(b *[irqInfoLen]byte) {
	le.PutUint32(b[0:], i.argsz)
	le.PutUint32(b[4:], i.flags)
	le.PutUint32(b[8:], i.index)
	le.PutUint32(b[12:], i.count)
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
	argsz uint32 // offset 0
	flags uint32 // 4
	index uint32 // 8
	start uint32 // 12
	count uint32 // 16
}

func (i *irqSet) decode(b *[irqSetLen]byte) {
	i.argsz = le.Uint32(b[0:])
	i.flags = le.Uint32(b[4:])
	i.index = le.Uint32(b[8:])
	i.start = le.Uint32(b[12:])
	i.count = le.Uint32(b[16:])
}

func (i *irqSet) encode(b *[irqSetLen]byte) {
	le.PutUint32(b[0:], i.argsz)
	le.PutUint32(b[4:], i.flags)
	le.PutUint32(b[8:], i.index)
	le.PutUint32(b[12:], i.start)
	le.PutUint32(b[16:], i.count)
}

// access says what part of a region is read or written: the head of REGION_READ, REGION_WRITE,
// their replies, and of each entry of REGION_WRITE_MULTI.
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

func (a *access) encode(b *[accessLen]byte) {
	le.PutUint64(b[0:], a.offset)
	le.PutUint32(b[8:], a.region)
	le.PutUint32(b[12:], a.count)
}

// String says what is accessed, for errors.
func (a *access) String() string {
	return fmt.Sprintf("region %d [%#x, +%#x)", a.region, a.offset, a.count)
}
