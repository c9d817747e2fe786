package driver

import (
	"errors"
	"log/slog"
	"net"

	"vnic.dev/vnic/control"
)

var errTODO = errors.New("driver: not there yet")

// Options are those of every transport. The zero value is good.
type Options struct {
	QueuePairs int // to use; 0: all that the device has, up to 8
	HostQueues int // receive queues with buffers in host memory, from queue 0 on; at least 1. The others wait to be bound
	RingSize   int // entries of each ring, a power of two; 0: 256, or what the device takes
	Log        *slog.Logger
	// OnGeneration is called on a goroutine of its own when the device has lost its in-band state, after the split of
	// bound queues was set again: rules, buffers and bindings are the caller's to set up again.
	OnGeneration func(generation uint32)
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
	Addr uint64 // guest-physical address to announce it at: above the NIC's own memory
}

// FrontendOptions are those of Attach.
type FrontendOptions struct {
	Options
	Conn *net.UnixConn // owned by the NIC from then on
	MAC  net.HardwareAddr
	MTU  int // 0: 1500, or what the backend says
	GPUs []FrontendGPU
}

// NIC is a virtio-net device in use.
type NIC struct{}

// OpenPCI takes a virtio-net PCI device from the kernel and starts it. It wants root.
func OpenPCI(o PCIOptions) (*NIC, error) { return nil, errTODO }

// Attach starts the device behind a vhost-user backend.
func Attach(o FrontendOptions) (*NIC, error) { return nil, errTODO }

// MAC is the NIC's address.
func (n *NIC) MAC() net.HardwareAddr { return nil }

// MTU is the largest IP packet, in bytes.
func (n *NIC) MTU() int { return 0 }

// QueuePairs is how many receive queues, and transmit queues, are in use.
func (n *NIC) QueuePairs() int { return 0 }

// GPUs lists the GPUs in reach.
func (n *NIC) GPUs() []GPUInfo { return nil }

// Control is the in-band channel to the NIC.
func (n *NIC) Control() *control.Client { return nil }

// Start names who gets the frames; before it, they are dropped.
func (n *NIC) Start(r Receiver) error { return errTODO }

// Err says why the NIC has stopped, nil if it has not.
func (n *NIC) Err() error { return nil }

// Close stops the device and gives all pages back. It waits for callbacks under way.
func (n *NIC) Close() error { return nil }

// BindQueue turns on header split for a receive queue and posts pages of a GPU to it.
func (n *NIC) BindQueue(queue int, gpu int, src PageSource) error { return errTODO }

// UnbindQueue turns header split off, and gives the posted pages back to their source.
func (n *NIC) UnbindQueue(queue int) error { return errTODO }

// Refill says that pages for a bound queue are free again. It never waits.
func (n *NIC) Refill(queue int) {}

// Transmit puts frames on a transmit queue and returns how many it took: less than all if the ring is full, then
// Completed tells when to go on. An error is about frame f[n] and is the caller's, or the NIC has stopped.
func (n *NIC) Transmit(queue int, f []TxFrame) (int, error) { return 0, errTODO }

// Stats counts.
func (n *NIC) Stats() Stats { return Stats{} }
