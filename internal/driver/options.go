package driver

import (
	"log/slog"
	"net"
	"runtime"
	"time"
)

// Options are those of every transport. The zero value is good.
type Options struct {
	QueuePairs int // to use; 0: all that the device has, up to 8
	// HostQueues is how many receive queues have buffers in host memory, from queue 0 on; at least 1. The
	// others wait to be bound: nothing should be steered there before.
	HostQueues int
	RingSize   int // entries of each ring, a power of two up to 1024; 0: 256, or what the device takes
	// PagesPerChain is how many pages a bound queue posts with each header buffer, 1 to 16; 0: 4. Many are good for
	// GSO packets, few for a small page pool.
	PagesPerChain int
	// Spin is how long at most the idle driver polls before it sleeps; 0: 30 us, or not at all on one processor;
	// negative: not at all.
	Spin time.Duration
	// WholeFrames has what a frame to send has in host memory lie in one buffer, for backends that take no chain of
	// several (passt). Frames then have no Device ranges.
	WholeFrames bool
	Log         *slog.Logger
	// OnGeneration is called, on a goroutine of its own, when the device has lost its in-band state and the split of
	// bound queues was set again: rules, buffers and bindings are the caller's to set again. Close waits for it.
	OnGeneration func(generation uint32)
}

// MaxPairs is how many queue pairs the driver uses of a device.
const MaxPairs = 8

const (
	maxRing      = 1024
	defaultRing  = 256
	minRing      = 8
	defaultPages = 4
	maxPages     = 16
	defaultSpin  = 30 * time.Microsecond
)

// fill puts the defaults in.
func (o *Options) fill() {
	if o.QueuePairs <= 0 || o.QueuePairs > MaxPairs {
		o.QueuePairs = MaxPairs
	}
	o.HostQueues = max(1, o.HostQueues)
	if o.RingSize <= 0 {
		o.RingSize = defaultRing
	}
	size := minRing // the power of two at or below
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

// PCIOptions are those of OpenPCI.
type PCIOptions struct {
	Options
	Address string // of the virtio-net device, "0000:00:02.0"; empty: the only one
}

// FrontendGPU is a GPU that the process shares with the backend.
type FrontendGPU struct {
	ID   int
	FD   int // stays the caller's
	Size uint64
	Addr uint64 // guest-physical address to announce it at; 0: the driver chooses
}

// FrontendOptions are those of Attach.
type FrontendOptions struct {
	Options
	Conn *net.UnixConn // owned by the NIC from then on
	MAC  net.HardwareAddr
	MTU  int // 0: 1500, or what the backend says
	GPUs []FrontendGPU
}
