package control

import (
	"net/netip"
	"syscall"
)

// Info is what a NIC says about itself (Info/Hello).
type Info struct {
	Generation  uint32 // of the port's state: a new one means that the state is empty and to be set up again
	Flags       InfoFlags
	MAC         [6]byte
	MTU         uint16
	QueuePairs  uint16 // receive queues are 0 to QueuePairs-1, and so are transmit queues
	HeaderLimit uint16 // longest header, in bytes, that is split; a header buffer is at least 12 bytes longer (virtio)
	MaxRSS      uint16 // entries of the largest RSS table
	MaxRules    uint16
	MaxBuffers  uint16
	MaxBindings uint16
	MaxMeters   uint16
	MaxJobs     uint16 // jobs that may be under way at one time
	GPUs        uint16 // GPUs that this port may use
}

// InfoFlags tell how a NIC was configured.
type InfoFlags uint32

// Flags of Info.
const (
	InfoP2P InfoFlags = 1 << 0 // payload goes to and from GPU memory directly where the PCIe path allows it
)

// Split is the header split policy of a receive queue.
type Split struct {
	Queue     uint16
	On        bool
	Threshold uint32 // hds-thresh: a frame is split if its payload is longer than this; a bound queue needs 0
}

// FlowRule steers packets of a flow to a receive queue.
type FlowRule struct {
	ID       uint32     // chosen by the NIC, from 1
	IPv6     bool       // family of the packets, also where both addresses are any
	Proto    uint8      // 6 TCP, 17 UDP
	Src, Dst netip.Addr // as in the received packet; the zero Addr is any
	SrcPort  uint16     // 0 is any
	DstPort  uint16     // 0 is any
	Queue    uint16
}

// Hash types of RSS, as bits (virtio 1.3, 5.1.6.4.3.1: VIRTIO_NET_HASH_TYPE_*).
const (
	HashIPv4  = 1 << 0
	HashTCPv4 = 1 << 1
	HashUDPv4 = 1 << 2
	HashIPv6  = 1 << 3
	HashTCPv6 = 1 << 4
	HashUDPv6 = 1 << 5
)

// MaxRSSTable is the most entries that RSS may have on the wire.
const MaxRSSTable = 512

// RSS is a port's receive side scaling.
type RSS struct {
	HashTypes uint32
	Key       [40]byte
	Table     []uint16 // receive queues; a power of two entries, up to MaxRSSTable
}

// GPUInfo describes a GPU that the port may use.
type GPUInfo struct {
	ID     uint16
	Attach Attach
	BAR    uint8  // of the PCI device, if AttachBAR
	P2P    P2P    // the path between this port's NIC and the GPU
	Vendor uint16 // PCI ids of the device that shows the memory, if AttachBAR
	Device uint16
	DevFn  uint8 // hint: device number << 3 | function, as the host placed it on its bus; 0xff unknown
	Node   uint8 // NUMA node, if AttachNode; 0xff unknown
	Size   uint64
	Place  string // in the PCIe tree: "rc0/sw0/gpu0"; at most MaxPlace bytes
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

// Kinds of paths.
const (
	P2PNone       P2P = 0 // payload is bounced through host memory
	P2PBus        P2P = 1 // below a common switch
	P2PHostBridge P2P = 2 // through a root complex that allows it
)

// Buffer is a registered range of a GPU's memory, in whole 4 KiB pages.
type Buffer struct {
	ID   uint32 // chosen by the NIC, from 1
	GPU  uint16
	Off  uint64
	Size uint64
}

// MaxBindQueues is how many receive queues one binding can name.
const MaxBindQueues = 256

// Binding ties receive queues, or transmission, to a buffer.
type Binding struct {
	ID     uint32 // chosen by the NIC, from 1
	Tx     bool
	Buffer uint32
	Queues []uint16 // receive queues; none if Tx
}

// Meter names a connection to be counted on this port. Both directions are counted.
type Meter struct {
	ID            uint32 // chosen by the NIC, from 1
	Proto         uint8
	Local, Remote netip.AddrPort // as the port's guest sees them: received packets go from Remote to Local
}

// DirCounters counts one direction. Payload bytes are counted by where they lie on this port's side: the memory
// written for received packets, the memory read for sent ones.
type DirCounters struct {
	Packets      uint64 // as the guest saw or sent them: a super-packet is one
	Segments     uint64 // as packets of the wire's size: a super-packet is many
	HeaderBytes  uint64
	DeviceBytes  uint64 // payload in registered GPU buffers
	GPUFileBytes uint64 // payload in GPU memory outside of every registered buffer
	HostBytes    uint64 // payload in host memory
	BouncedBytes uint64 // payload that went through host memory on its way to or from a GPU, as P2P was not possible
	RetransBytes uint64 // payload bytes seen again: part of the three payload counters above
	Drops        uint64 // packets dropped by this port, not in the counters above
	DroppedBytes uint64 // payload bytes of these
}

// MeterCounters is what a meter has seen.
type MeterCounters struct{ Rx, Tx DirCounters }

// PortCounters is what a port has seen in all, and what its engines did.
type PortCounters struct {
	Rx, Tx DirCounters
	Engine EngineCounters
}

// EngineCounters counts the work of a port's copy engines.
type EngineCounters struct {
	Jobs       uint64 // ended, in whatever way
	Failed     uint64 // of these, with an error
	Gathered   uint64 // bytes within GPU memory
	ToGuest    uint64 // bytes from GPU memory to guest RAM (D2H)
	FromGuest  uint64 // bytes from guest RAM to GPU memory (H2D)
	Filled     uint64 // bytes written by fill and poison
	Hashed     uint64 // bytes read by SHA-256
	TableBytes uint64 // bytes of tables read
}

// JobOp is what a job does.
type JobOp uint8

// Operations of jobs. GPU offsets lie in buffers that the port registered.
const (
	JobFill      JobOp = 1 // write the pattern of Seed from stream position Stream to [Off, Off+Len)
	JobPoison    JobOp = 2 // write the byte Seed&0xff to [Off, Off+Len)
	JobGather    JobOp = 3 // table: Src and Dst are GPU offsets
	JobToGuest   JobOp = 4 // D2H. Table: Src is a GPU offset, Dst an IOVA
	JobFromGuest JobOp = 5 // H2D. Table: Src is an IOVA, Dst a GPU offset
	JobSHA256    JobOp = 6 // hash [Off, Off+Len)
)

// Job is work for an engine.
type Job struct {
	Op         JobOp
	TableInGPU bool   // Table is a GPU offset, not an IOVA
	GPU        uint16 // whose memory all GPU offsets of the job are in
	Off, Len   uint64
	Seed       uint64
	Stream     uint64 // byte position in the pattern's stream
	Table      uint64 // of entries of JobEntryLen bytes
	Entries    uint32
}

// JobEntryLen is the size of an entry of a job's table, in bytes.
const JobEntryLen = 24

// JobEntry is one entry of a job's table.
type JobEntry struct {
	Src uint64 // offset 0
	Dst uint64 // 8
	Len uint32 // 16; 20: four bytes, zero
}

// JobState tells how far a job is.
type JobState uint8

// States of a job.
const (
	JobRunning JobState = 1
	JobDone    JobState = 2 // Errno tells how it ended
)

// JobStatus is what is known of a job.
type JobStatus struct {
	ID    uint64
	State JobState
	Errno syscall.Errno // ECANCELED, EFAULT (outside of the port's memory), EIO (memory is gone), ...; 0 is success
	Entry uint32        // first entry that was not done in full
	Bytes uint64        // done
	Sum   [32]byte      // of JobSHA256
}

// Err returns the job's error, nil while it runs and when it succeeded.
func (s *JobStatus) Err() error {
	if s.State != JobDone || s.Errno == 0 {
		return nil
	}
	return s.Errno
}
