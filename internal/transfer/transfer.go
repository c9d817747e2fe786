// Package transfer moves a buffer from one guest's GPU memory to another's and reports the cost.
//
// A Node is one guest's end. The host calls its methods in order: Prepare on both, Listen and Connect, Accept;
// Receive and Send at the same time; Finish on both. The calls reach a guest under QEMU through the results
// channel (Ops registers them with the agent); for an in-process guest they are direct.
//
// In mode devmem payload moves from GPU memory into the socket and out of it by reference, and an engine
// gathers the received fragments into one contiguous buffer. In mode copy an engine copies payload from GPU
// memory to guest RAM, ordinary sockets carry it to the other guest's RAM, and an engine copies it from there
// to GPU memory.
//
// A cancelled call may keep running for a moment in its guest. Finish waits for running calls before it frees
// memory. It can be called at any time, and repeatedly.
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

// Memory allocates memory that the NIC and the engines can access and that is contiguous for them. It stays
// allocated until the NIC is closed.
type Memory interface {
	AllocDMA(size int) (b []byte, iova uint64, err error)
}

// Engine runs jobs on the guest's GPUs: *control.Client, or *kernelnic.Engine. After RunJob has returned, the
// job no longer accesses memory, unless the NIC does not answer.
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
	port   port // for RDMA; its control is nil if the Node's creator set none
	more   bool // another Node closes the device
	late   late

	finishing sync.Mutex // one Finish at a time

	joining sync.Mutex // one Join or Leave at a time
	opening sync.Mutex // guards storage, source and rdma, and their opening and closing
	storage *storage   // nil: not open
	source  *source    // nil: not open
	rdma    *rdmaEnd   // nil: not open

	mu     sync.Mutex // guards the fields below, and the fields of session as noted there
	now    *session   // nil: nothing is prepared
	member *member    // nil: in no ring
	memory devmem.Memory

	// The Node allocates these once, because DMA memory cannot be freed. Prepare uses the first three, then Receive
	// or Send; an RDMA uses pinned.
	staging []slot
	linear  slot
	frags   []devmem.Frag
	pinned  *pinned // under mu
}

// NewNode makes a Node from a device, its engines and its memory. cpu reads the guest's CPU time; nil: unknown.
func NewNode(dev devmem.Device, engine Engine, mem Memory, cpu func() CPU) *Node {
	return &Node{dev: dev, engine: engine, mem: mem, cpu: cpu}
}

// Another returns a second Node of the same device, for a concurrent transfer. The second Node's Close leaves
// the device open; the caller closes the first Node last.
func (n *Node) Another() *Node {
	other := NewNode(n.dev, n.engine, n.mem, n.cpu)
	other.more, other.port = true, n.port
	return other
}

// PrepareArgs describe a transfer at one end: the data, and its place in GPU memory. Offsets are in the GPU's
// memory or, if the guest uses only a window of the memory (GPU.Extents), in the window.
type PrepareArgs struct {
	Mode  string `json:"mode"`
	Send  bool   `json:"send"`
	GPU   int    `json:"gpu"`
	Off   uint64 `json:"off"`   // of the data, source or destination
	Bytes uint64 `json:"bytes"` // whole pages
	Len   uint64 `json:"len"`   // bytes to transfer, at most Bytes
	Seed  uint64 `json:"seed"`  // of the source's pattern, or in its low byte the poison of destination and pool

	// For a receiver in mode devmem.
	PoolOff   uint64 `json:"pool_off,omitempty"`
	PoolBytes uint64 `json:"pool_bytes,omitempty"`
	Queues    []int  `json:"queues,omitempty"`

	Local  netip.AddrPort `json:"local"`
	Remote netip.AddrPort `json:"remote"`
	// Hold is the number of bytes, in whole pages, whose tokens the receiver keeps until the end instead of
	// returning them.
	Hold uint64 `json:"hold,omitempty"`
	// HoldSeconds is the number of seconds without data after which the receiver returns these tokens anyway; 0:
	// not before the end.
	HoldSeconds int `json:"hold_seconds,omitempty"`
	// StallSeconds is the number of seconds without progress after which the transfer fails; 0: limits.Stall.
	StallSeconds int `json:"stall_seconds,omitempty"`
}

func (p *PrepareArgs) stall() time.Duration {
	if p.StallSeconds == 0 {
		return limits.Stall.Here()
	}
	return time.Duration(p.StallSeconds) * time.Second
}

// check rejects arguments that the device and the engines would not refuse, or only too late.
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
	Linear      uint64 `json:"linear_bytes"` // in mode devmem: payload received in guest RAM
	Frags       uint64 `json:"frags"`
	Jobs        uint64 `json:"jobs"`
	Held        uint64 `json:"held,omitempty"`   // tokens that the receiver kept (PrepareArgs.Hold)
	Stalls      uint64 `json:"stalls,omitempty"` // how often held tokens were returned because no more data came
	Late        uint64 `json:"late,omitempty"`   // the most tokens that LateTokens delayed at the same time
	Retransmits uint64 `json:"retransmits"`      // segments
	CPU         CPU    `json:"cpu"`
}

// Cost is the cost of an operation in its guest.
type Cost struct {
	Seconds     float64 `json:"seconds"`
	Retransmits uint64  `json:"retransmits"` // segments
	CPU         CPU     `json:"cpu"`
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
