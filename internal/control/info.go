package control

// Info has the properties of a NIC: the reply to InfoHello.
type Info struct {
	Generation uint32    // offset 0: of the port's state; a new one means that the state is empty
	Flags      InfoFlags // 4
	MAC        [6]byte   // 8
	MTU        uint16    // 14
	QueuePairs uint16    // 16: receive queues are 0 to QueuePairs-1, and so are transmit queues
	// 18: most bytes of a frame that the NIC puts in a header buffer: TCP headers, or a whole frame of another kind; with
	// virtio, a header buffer has room for the virtio_net_hdr before them, too
	HeaderLimit     uint16
	MaxRSS          uint16  // 20: entries of the largest RSS table
	MaxRules        uint16  // 22
	MaxBuffers      uint16  // 24
	MaxBindings     uint16  // 26
	MaxFlowCounters uint16  // 28
	MaxJobs         uint16  // 30: jobs that may run at one time
	GPUs            uint16  // 32: number of GPUs that this port may use
	_               [6]byte // 34
}

// InfoFlags are properties of a NIC's configuration.
type InfoFlags uint32

// Flags of Info.
const (
	InfoP2P InfoFlags = 1 << 0 // payload goes directly to and from the memory of at least one GPU
)

// GPUInfo describes a GPU that the port may use.
type GPUInfo struct {
	ID     uint16 // offset 0
	Attach Attach // 2
	BAR    uint8  // 3: of the PCI device, if AttachBAR
	P2P    P2P    // 4: the path between this port's NIC and the GPU
	DevFn  uint8  // 5: hint, if AttachBAR: device number << 3 | function, on a PCI bus of the guest; 0xff unknown
	Node   uint8  // 6: NUMA node, if AttachNode; 0xff unknown
	Vendor uint16 // 8: PCI ids of the device that has the memory, if AttachBAR
	Device uint16 // 10
	Size   uint64 // 16: bytes of memory
	Place  string // 7: its length, 24: path in the PCIe tree, such as "rc0/sw0/gpu0", cut to MaxPlace bytes
}

// MaxPlace is the longest Place of a GPUInfo, in bytes.
const MaxPlace = 40

// MaxGPUs bounds a port's list of GPUs.
const MaxGPUs = 16

// Attach is how a guest sees a GPU's memory.
type Attach uint8

// Ways to attach.
const (
	AttachNone Attach = 0 // not visible
	AttachBAR  Attach = 1 // a BAR of a PCI device (ivshmem-plain, or the NIC's own)
	AttachNode Attach = 2 // a CPU-less NUMA node
)

// P2P is the kind of path between a NIC and a GPU.
type P2P uint8

// Kinds of paths, numbered like pcie.PathKind's.
const (
	P2PNone       P2P = 0 // payload goes through host memory
	P2PBus        P2P = 1 // NIC and GPU are below a common PCIe switch
	P2PHostBridge P2P = 2 // payload goes through host bridges that forward peer-to-peer requests
)

func (g GPUInfo) number() uint32 { return uint32(g.ID) + 1 }

type gpuInfo struct {
	ID             uint16
	Attach         Attach
	BAR            uint8
	P2P            P2P
	DevFn, Node    uint8
	PlaceLen       uint8
	Vendor, Device uint16
	_              [4]byte
	Size           uint64
	Place          [MaxPlace]byte
}

func (g GPUInfo) append(b []byte) ([]byte, error) {
	w := gpuInfo{ID: g.ID, Attach: g.Attach, BAR: g.BAR, P2P: g.P2P, DevFn: g.DevFn, Node: g.Node,
		Vendor: g.Vendor, Device: g.Device, Size: g.Size}
	w.PlaceLen = uint8(copy(w.Place[:], g.Place))
	return encode(b, w)
}

func (g *GPUInfo) decode(data []byte) (int, error) {
	var w gpuInfo
	n, err := decodeFixed(data, &w)
	if err != nil {
		return 0, err
	}
	if w.PlaceLen > MaxPlace {
		return 0, badData("GPU %d: place of %d bytes, not up to %d", w.ID, w.PlaceLen, MaxPlace)
	}
	*g = GPUInfo{ID: w.ID, Attach: w.Attach, BAR: w.BAR, P2P: w.P2P, DevFn: w.DevFn, Node: w.Node,
		Vendor: w.Vendor, Device: w.Device, Size: w.Size, Place: string(w.Place[:w.PlaceLen])}
	return n, nil
}

// GPUMap is a part of a GPU's memory, from Off on, in the guest's physical address space at IOVA: in a BAR, or on a
// NUMA node.
type GPUMap struct {
	ID   uint32 // offset 0: position in the list, from 1
	GPU  uint16 // 4
	_    uint16
	IOVA uint64 // 8
	Off  uint64 // 16
	Size uint64 // 24
}

func (m GPUMap) number() uint32 { return m.ID }
