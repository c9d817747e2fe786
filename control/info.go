package control

// Info is what a NIC says about itself (Info/Hello).
type Info struct {
	Generation  uint32    // offset 0: of the port's state: a new one means that the state is empty and to be set up again
	Flags       InfoFlags // 4
	MAC         [6]byte   // 8
	MTU         uint16    // 14
	QueuePairs  uint16    // 16: receive queues are 0 to QueuePairs-1, and so are transmit queues
	HeaderLimit uint16    // 18: longest header, in bytes, that is split; a header buffer is at least 12 bytes longer (virtio)
	MaxRSS      uint16    // 20: entries of the largest RSS table
	MaxRules    uint16    // 22
	MaxBuffers  uint16    // 24
	MaxBindings uint16    // 26
	MaxMeters   uint16    // 28
	MaxJobs     uint16    // 30: jobs that may be under way at one time
	GPUs        uint16    // 32: GPUs that this port may use
}

// InfoFlags tell how a NIC was configured.
type InfoFlags uint32

// Flags of Info.
const (
	InfoP2P InfoFlags = 1 << 0 // payload goes to and from GPU memory directly where the PCIe path allows it
)

const infoLen = 40 // 34: six bytes, zero. A reply may be longer: a later revision's fields follow

func (i *Info) encode(b *[infoLen]byte) {
	*b = [infoLen]byte{}
	le.PutUint32(b[0:], i.Generation)
	le.PutUint32(b[4:], uint32(i.Flags))
	copy(b[8:], i.MAC[:])
	le.PutUint16(b[14:], i.MTU)
	le.PutUint16(b[16:], i.QueuePairs)
	le.PutUint16(b[18:], i.HeaderLimit)
	le.PutUint16(b[20:], i.MaxRSS)
	le.PutUint16(b[22:], i.MaxRules)
	le.PutUint16(b[24:], i.MaxBuffers)
	le.PutUint16(b[26:], i.MaxBindings)
	le.PutUint16(b[28:], i.MaxMeters)
	le.PutUint16(b[30:], i.MaxJobs)
	le.PutUint16(b[32:], i.GPUs)
}

func (i *Info) decode(b *[infoLen]byte) error {
	*i = Info{
		Generation: le.Uint32(b[0:]), Flags: InfoFlags(le.Uint32(b[4:])), MAC: [6]byte(b[8:]), MTU: le.Uint16(b[14:]),
		QueuePairs: le.Uint16(b[16:]), HeaderLimit: le.Uint16(b[18:]), MaxRSS: le.Uint16(b[20:]),
		MaxRules: le.Uint16(b[22:]), MaxBuffers: le.Uint16(b[24:]), MaxBindings: le.Uint16(b[26:]),
		MaxMeters: le.Uint16(b[28:]), MaxJobs: le.Uint16(b[30:]), GPUs: le.Uint16(b[32:]),
	}
	return nil
}

// GPUInfo describes a GPU that the port may use.
type GPUInfo struct {
	ID     uint16 // offset 0
	Attach Attach // 2
	BAR    uint8  // 3: of the PCI device, if AttachBAR
	P2P    P2P    // 4: the path between this port's NIC and the GPU
	DevFn  uint8  // 5: hint: device number << 3 | function, as the host placed it on its bus; 0xff unknown
	Node   uint8  // 6: NUMA node, if AttachNode; 0xff unknown
	Vendor uint16 // 8: PCI ids of the device that shows the memory, if AttachBAR
	Device uint16 // 10
	Size   uint64 // 16
	Place  string // 7: its length, 24: in the PCIe tree: "rc0/sw0/gpu0"; at most MaxPlace bytes
}

// MaxPlace is the longest Place of a GPUInfo, in bytes.
const MaxPlace = 40

// MaxGPUs is how many GPUs a port can list.
const MaxGPUs = 16

// Attach says how a guest sees a GPU's memory.
type Attach uint8

// Ways to attach.
const (
	AttachNone Attach = 0 // not at all, or by a descriptor (in a process)
	AttachBAR  Attach = 1 // a BAR of a PCI device (ivshmem-plain, or the NIC's own)
	AttachNode Attach = 2 // a CPU-less NUMA node
)

// P2P is the kind of path between a NIC and a GPU.
type P2P uint8

// Kinds of paths. The numbers are those of gpumem.PathKind.
const (
	P2PNone       P2P = 0 // payload is bounced through host memory
	P2PBus        P2P = 1 // below a common switch
	P2PHostBridge P2P = 2 // through a root complex that allows it
)

const gpuLen = 24 + MaxPlace // 12: four bytes, zero

func (g *GPUInfo) encode(b *[gpuLen]byte) {
	*b = [gpuLen]byte{}
	place := g.Place[:min(len(g.Place), MaxPlace)]
	le.PutUint16(b[0:], g.ID)
	b[2], b[3], b[4], b[5], b[6], b[7] = byte(g.Attach), g.BAR, byte(g.P2P), g.DevFn, g.Node, byte(len(place))
	le.PutUint16(b[8:], g.Vendor)
	le.PutUint16(b[10:], g.Device)
	le.PutUint64(b[16:], g.Size)
	copy(b[24:], place)
}

func (g *GPUInfo) decode(b *[gpuLen]byte) error {
	n := int(b[7])
	if n > MaxPlace || !zero(b[12:16]) || !zero(b[24+min(n, MaxPlace):]) {
		return badData("GPU %d: place of %d bytes, or reserved bytes not zero", le.Uint16(b[0:]), n)
	}
	*g = GPUInfo{
		ID: le.Uint16(b[0:]), Attach: Attach(b[2]), BAR: b[3], P2P: P2P(b[4]), DevFn: b[5], Node: b[6],
		Vendor: le.Uint16(b[8:]), Device: le.Uint16(b[10:]), Size: le.Uint64(b[16:]), Place: string(b[24 : 24+n]),
	}
	return nil
}
