package driver

import (
	"log/slog"
	"net"
	"runtime"
	"time"
)

// Options are common to all transports; the zero value works.
type Options struct {
	QueuePairs int // queue pairs in use, if the device has as many; 0: all that it has, up to 8
	// HostQueues is how many receive queues have buffers in host memory, from queue 0 on; 0 counts as 1. The others
	// receive nothing until they are bound.
	HostQueues int
	// RingSize is the number of entries of receive and transmit rings, 8 to 1024, rounded down to a power of two
	// and to what the device supports; 0: 256.
	RingSize int
	// PagesPerChain is how many pages, at most, a bound queue posts with each header buffer: 1 to 16, fewer than
	// RingSize; 0: 4.
	PagesPerChain int
	// Spin is how long, at most, the idle driver polls before it sleeps; negative: not at all. 0: 30 us, or not at all
	// if GOMAXPROCS is 1.
	Spin time.Duration
	// WholeFrames makes Transmit put virtio_net_hdr, Header and Linear of a frame into one buffer, for backends that
	// need that (passt). Frames then must not have Device ranges.
	WholeFrames bool
	Log         *slog.Logger
	// OnGeneration, if set, is called on a separate goroutine when the device has lost its in-band state and the driver
	// has turned the split of bound queues on again. The caller must then set up rules, buffers and bindings again.
	// Close waits for a running call.
	OnGeneration func(generation uint32)
}

// MaxPairs is the maximum number of queue pairs in use.
const MaxPairs = 8

const (
	maxRing      = 1024
	defaultRing  = 256
	minRing      = 8
	defaultPages = 4
	maxPages     = 16
	defaultSpin  = 30 * time.Microsecond
)

func (o *Options) fill() {
	if o.QueuePairs <= 0 || o.QueuePairs > MaxPairs {
		o.QueuePairs = MaxPairs
	}
	o.HostQueues = max(1, o.HostQueues)
	if o.RingSize <= 0 {
		o.RingSize = defaultRing
	}
	size := minRing
	for 2*size <= min(o.RingSize, maxRing) {
		size *= 2
	}
	o.RingSize = size
	if o.PagesPerChain <= 0 {
		o.PagesPerChain = defaultPages
	}
	o.PagesPerChain = min(o.PagesPerChain, maxPages, o.RingSize-1)
	if o.Spin == 0 && runtime.GOMAXPROCS(0) > 1 {
		o.Spin = defaultSpin
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
}

// PCIOptions are the options of OpenPCI.
type PCIOptions struct {
	Options
	Address string // of the virtio-net device, such as "0000:00:02.0"; empty: there must be only one
}

// FrontendGPU is a GPU that the process shares with the backend.
type FrontendGPU struct {
	ID   int
	FD   int
	Size uint64
	Addr uint64 // guest-physical, in the backend's memory map, a multiple of PageSize; 0: the driver chooses
}

// FrontendOptions are the options of Attach.
type FrontendOptions struct {
	Options
	Conn *net.UnixConn // Attach takes ownership, also if it fails
	MAC  net.HardwareAddr
	MTU  int // 0: the MTU in the backend's configuration space, or 1500 if it has none
	GPUs []FrontendGPU
}
