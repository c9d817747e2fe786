package stack

import (
	"context"
	"net"

	"vnic.dev/vnic/internal/control"
	"vnic.dev/vnic/internal/driver"
)

// NIC is the device under a stack: *driver.NIC, or one of a pair of NICs in memory (package stacktest). If
// New succeeds, the stack owns the NIC, and Stack.Close closes it.
//
// The NIC calls the receiver's Receive, Completed and Wake without a lock that Transmit or Refill takes: these methods
// may call Transmit and Refill. When the device no longer reads a frame that Transmit accepted, the NIC calls
// Completed with the frame's cookie, unless the cookie is 0 or the NIC is closed.
type NIC interface {
	MAC() net.HardwareAddr
	MTU() int
	QueuePairs() int
	GPUs() []driver.GPUInfo
	Start(r driver.Receiver) error
	Err() error
	Close() error
	BindQueue(queue int, gpu int, src driver.PageSource) error
	UnbindQueue(queue int) error
	Refill(queue int)
	Transmit(queue int, f []driver.TxFrame) (int, error)
	Stats() driver.Stats
	Offloads() driver.Offloads
}

// Control is the NIC's control channel: *control.Client, or a NIC of package stacktest.
type Control interface {
	RegisterBuffer(ctx context.Context, gpu uint16, off, size uint64) (uint32, error)
	UnregisterBuffer(ctx context.Context, id uint32) error
	BindRx(ctx context.Context, buffer uint32, queues ...uint16) (uint32, error)
	BindTx(ctx context.Context, buffer uint32) (uint32, error)
	Unbind(ctx context.Context, id uint32) error
	AddFlow(ctx context.Context, r control.FlowRule) (uint32, error)
	DelFlow(ctx context.Context, id uint32) error
	SetRSS(ctx context.Context, r control.RSS) error
	PortCounters(ctx context.Context) (control.PortCounters, error)
}

var (
	_ NIC     = (*driver.NIC)(nil)
	_ Control = (*control.Client)(nil)
)
