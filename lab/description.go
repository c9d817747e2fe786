package lab

import (
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"time"

	"vnic.dev/vnic/dma"
	"vnic.dev/vnic/wire"
)

// MaxPorts is how many ports a world has: the last byte of an address says which one it is, and some are the gateway's and
// broadcast. MaxGPUs of them can have GPU memory.
const (
	MaxPorts = 250
	MaxGPUs  = dma.MaxGPUs
)

// Options say what a world has.
type Options struct {
	NIC        string // Virtio or GVE
	Ports      []PortOptions
	QueuePairs int           // of each NIC; 0: the personality's
	MTU        int           // 0: 1500
	GPUMemory  uint64        // of each port's GPU; 0: none has one
	NoP2P      bool          // no NIC reaches its GPU's memory: payload is bounced through host memory
	Farewell   time.Duration // how long Close waits for connections to end by themselves, where each QEMU has been ended before
	Log        *slog.Logger  // nil: none
	// Services are what else is on the switch, a gateway or a capture: each is made when all ports are there, and closed, last one
	// first, before they go.
	Services []func(*Lab) (io.Closer, error)
}

// PortOptions say what is particular about a port. The zero PortOptions is a good one.
type PortOptions struct {
	Name  string           // for logs, counters and captures; "": port0, port1, ...
	MAC   wire.MAC         // zero: MAC(i)
	Addr4 netip.Prefix     // what the guest is meant to have; zero: Addr4(i)
	Addr6 netip.Prefix     // zero: Addr6(i)
	NoGPU bool             // it has none, whatever GPUMemory says
	Link  wire.LinkOptions // impairment
}

const defaultMTU = 1500

// PortName and its number is a port that has no other name.
const PortName = "port"

// MAC is the address of port i: 02:76:6e:69:00:01 is the first.
func MAC(i int) wire.MAC { return wire.MAC{0x02, 0x76, 0x6e, 0x69, 0x00, byte(i + 1)} }

// Addr4 is the IPv4 address of the guest at port i: 10.118.110.1/24 is the first.
func Addr4(i int) netip.Prefix {
	return netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 118, 110, byte(i + 1)}), 24)
}

// Addr6 is its IPv6 address: fd76:6e69::1/64 is the first.
func Addr6(i int) netip.Prefix {
	return netip.PrefixFrom(netip.AddrFrom16([16]byte{0: 0xfd, 1: 0x76, 2: 0x6e, 3: 0x69, 15: byte(i + 1)}), 64)
}

// Check says what is wrong with the options, in terms of flags, as a user gives them.
func (o *Options) Check() error {
	p, known := Of(o.NIC)
	n := len(o.Ports)
	gpus := o.gpus()
	switch {
	case !known:
		return fmt.Errorf("--nic %s: virtio or gve", o.NIC)
	case n < 1 || n > MaxPorts:
		return fmt.Errorf("%d ports: 1 to %d", n, MaxPorts)
	case o.MTU != 0 && (o.MTU < 576 || o.MTU > p.MaxMTU):
		return fmt.Errorf("--mtu %d: 576 to %d with --nic %s", o.MTU, p.MaxMTU, o.NIC)
	case o.QueuePairs < 0 || o.QueuePairs > maxQueuePairs:
		return fmt.Errorf("%d queue pairs: 1 to %d", o.QueuePairs, maxQueuePairs)
	case gpus > MaxGPUs:
		return fmt.Errorf("%d ports with GPU memory: %d at most: fewer ports, or --gpu-memory 0", gpus, MaxGPUs)
	case o.GPUMemory != 0 && !p.Node && (o.GPUMemory < 4096 || o.GPUMemory&(o.GPUMemory-1) != 0):
		return fmt.Errorf("--gpu-memory %s: not a power of two from 4K, as a PCI BAR must be", FormatBytes(o.GPUMemory))
	case p.Node && o.GPUMemory%hugePage != 0:
		return fmt.Errorf("--gpu-memory %s: not a multiple of 2M, as a NUMA node must be", FormatBytes(o.GPUMemory))
	}
	return nil
}

const hugePage = 2 << 20

// gpus counts the ports that have a GPU.
func (o *Options) gpus() (n int) {
	for _, p := range o.Ports {
		if o.GPUMemory != 0 && !p.NoGPU {
			n++
		}
	}
	return n
}

// FormatBytes writes a number of bytes as the flags take it: 4097, 64K, 512M, 4G.
func FormatBytes(n uint64) string {
	unit := 0
	for n != 0 && n%1024 == 0 && unit < 4 {
		n, unit = n/1024, unit+1
	}
	return fmt.Sprint(n, []string{"", "K", "M", "G", "T"}[unit])
}
