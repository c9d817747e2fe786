// Package transfer moves data between the GPU memory of two guests over TCP, and reports the cost. It also runs other
// work on a guest's GPU memory: collective operations, storage, downloads and RDMA.
//
// For a transfer each guest has a Node. The host calls their methods in this order: Prepare on both; Listen on the
// receiver's; Connect on the sender's and Accept on the receiver's at the same time; Send and Receive at the same
// time; Finish on both. The calls reach a guest under QEMU through its agent (Ops).
//
// In mode devmem payload moves from GPU memory into the socket and out of it by reference, and an engine gathers
// received fragments into one contiguous buffer; it also copies payload that arrived in guest RAM. In mode copy engines
// copy payload between GPU memory and guest RAM, and Nodes send and receive it with Write and Read.
//
// Finish cancels the transfer's running calls and waits for them before it frees GPU memory. It can be called at any
// time, and repeatedly.
package transfer

import (
	"context"
	"fmt"
	"net/netip"
	"sync"
	"syscall"
	"time"

	"vnic.dev/vnic/devmem"
	"vnic.dev/vnic/internal/control"
	"vnic.dev/vnic/internal/limits"
)

// Modes of a transfer.
const (
	Devmem = "devmem"
	Copy   = "copy"
)

// Memory allocates memory of the guest that the NIC and the engines can access and that is contiguous for them. The
// memory is not freed before the NIC is closed.
type Memory interface {
	AllocDMA(size int) (b []byte, iova uint64, err error)
}

// Engine runs jobs on the guest's GPUs: *control.Client, or *kernelnic.Engine, which uses one. After RunJob has
// returned, the job no longer accesses memory, unless the NIC does not answer or the Client was closed.
type Engine interface {
	RunJob(ctx context.Context, j control.Job) (control.JobStatus, error)
}

// Node is one guest's end of transfers. It runs one transfer at a time; methods may be called from any
// goroutine.
type Node struct {
	dev    devmem.Device
	engine Engine
	mem    Memory
	cpu    func() CPU
	port   port // for RDMA; its control is nil for a Node of NewNode alone
	more   bool // another Node closes the device
	late   late

	finishing sync.Mutex

	joining sync.Mutex // one Join or Leave at a time
	opening sync.Mutex // guards storage, source and rdma, also while they are opened and closed
	storage *storage   // nil: not open
	source  *source
	rdma    *rdmaEnd

	mu     sync.Mutex // guards now, member, memory, pinned, and fields of session
	now    *session   // nil: nothing is prepared
	member *member    // nil: in no ring
	memory devmem.Memory

	// Allocated at the first use and kept, because DMA memory cannot be freed before the NIC is closed. Prepare
	// allocates parts of staging, linear and frags, for Receive and Send; RDMA with MemoryRAM uses pinned.
	staging []slot
	linear  slot
	frags   []devmem.Frag
	pinned  *pinned
}

// NewNode makes a Node from a device, its engines and its memory. cpu reads the guest's CPU time; nil: unknown, and
// results have zeros.
func NewNode(dev devmem.Device, engine Engine, mem Memory, cpu func() CPU) *Node {
	return &Node{dev: dev, engine: engine, mem: mem, cpu: cpu}
}

// Another returns a second Node of the same device, for a concurrent transfer. Its Close leaves the device open; the
// caller closes the first Node last.
func (n *Node) Another() *Node {
	other := NewNode(n.dev, n.engine, n.mem, n.cpu)
	other.more, other.port = true, n.port
	return other
}

// PrepareArgs describe a transfer at one end. Offsets are in the GPU's memory or, with the kernel's driver, in the part
// of it that the guest allocated (GPU.Extents).
type PrepareArgs struct {
	Mode  string `json:"mode"`
	Send  bool   `json:"send"`
	GPU   int    `json:"gpu"`
	Off   uint64 `json:"off"`   // of the data's buffer
	Bytes uint64 `json:"bytes"` // size of the buffer, a multiple of devmem.PageSize
	Len   uint64 `json:"len"`   // bytes to transfer, from Off on; at most Bytes
	Seed  uint64 `json:"seed"`  // Send: of the data's pattern; else its low byte is written to the data and the pool

	// For a receiver in mode devmem.
	PoolOff   uint64 `json:"pool_off,omitempty"`
	PoolBytes uint64 `json:"pool_bytes,omitempty"`
	Queues    []int  `json:"queues,omitempty"`

	Local  netip.AddrPort `json:"local"`
	Remote netip.AddrPort `json:"remote"`
	// Hold, divided by devmem.PageSize, is how many tokens, at most, a receiver in mode devmem keeps until the
	// connection is closed.
	Hold uint64 `json:"hold,omitempty"`
	// HoldSeconds is the time without data after which the receiver returns these tokens, and keeps no more; 0: never.
	HoldSeconds int `json:"hold_seconds,omitempty"`
	// StallSeconds is the time without progress of the connection after which Send and Receive fail; 0:
	// limits.Stall.Here().
	StallSeconds int `json:"stall_seconds,omitempty"`
}

func (p *PrepareArgs) stall() time.Duration {
	if p.StallSeconds == 0 {
		return limits.Stall.Here()
	}
	return time.Duration(p.StallSeconds) * time.Second
}

// check rejects arguments that the device and the engines would refuse too late, or not at all.
func (p *PrepareArgs) check() error {
	wrong := func(format string, args ...any) error {
		return fmt.Errorf("%s: %w", fmt.Sprintf(format, args...), syscall.EINVAL)
	}
	local, remote := p.Local.Addr().Unmap(), p.Remote.Addr().Unmap()
	pool := p.Mode == Devmem && !p.Send
	switch {
	case p.Mode != Devmem && p.Mode != Copy:
		return wrong("mode %q: neither %q nor %q", p.Mode, Devmem, Copy)
	case p.GPU < 0 || p.GPU > 1<<16-1:
		return wrong("GPU %d", p.GPU)
	case p.Len == 0 || p.Len > p.Bytes:
		return wrong("%d bytes to transfer in a buffer of %d", p.Len, p.Bytes)
	case p.Off+p.Bytes < p.Off:
		return wrong("data [%#x, +%#x)", p.Off, p.Bytes)
	case !p.Local.IsValid() || !p.Remote.IsValid() || local.Is4() != remote.Is4():
		return wrong("addresses %v and %v: two of one family are needed", p.Local, p.Remote)
	case p.StallSeconds < 0 || p.HoldSeconds < 0:
		return wrong("stall limit of %d seconds, tokens held for %d", p.StallSeconds, p.HoldSeconds)
	case !pool:
	case len(p.Queues) == 0:
		return wrong("no queue to receive on")
	case p.PoolOff+p.PoolBytes < p.PoolOff:
		return wrong("page pool [%#x, +%#x)", p.PoolOff, p.PoolBytes)
	case p.PoolOff < p.Off+p.Bytes && p.Off < p.PoolOff+p.PoolBytes:
		return wrong("page pool [%#x, +%#x) overlaps the data at [%#x, +%#x)", p.PoolOff, p.PoolBytes, p.Off, p.Bytes)
	}
	return nil
}

// Result is the result of one end.
type Result struct {
	Bytes       uint64 `json:"bytes"`
	Linear      uint64 `json:"linear_bytes"` // part of Bytes: received in guest RAM in mode devmem
	Frags       uint64 `json:"frags"`
	Jobs        uint64 `json:"jobs"`
	Held        uint64 `json:"held,omitempty"`   // most tokens that PrepareArgs.Hold kept at a time
	Stalls      uint64 `json:"stalls,omitempty"` // 1 if these tokens were returned because no more data came
	Late        uint64 `json:"late,omitempty"`   // most tokens that LateTokens delayed at a time
	Retransmits uint64 `json:"retransmits"`      // segments, of all the device's connections meanwhile
	CPU         CPU    `json:"cpu"`              // of the whole guest meanwhile
}

// Cost is the cost of an operation in its guest.
type Cost struct {
	Seconds     float64 `json:"seconds"`
	Retransmits uint64  `json:"retransmits"` // segments, of all the device's connections meanwhile
	CPU         CPU     `json:"cpu"`         // of the whole guest meanwhile
}

func (n *Node) measure(r *Cost, f func() error) error {
	before := n.dev.Stats().Retransmits
	var cpu CPU
	if n.cpu != nil {
		cpu = n.cpu()
	}
	start := time.Now()
	err := f()
	r.Seconds = time.Since(start).Seconds()
	if n.cpu != nil {
		r.CPU = n.cpu().minus(cpu)
	}
	r.Retransmits = n.dev.Stats().Retransmits - before
	return err
}
