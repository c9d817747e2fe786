// Package transfer moves a buffer from one guest's GPU memory to another's and says what it cost: the guests' part of
// `vnic run`.
//
// A Node is one guest's end. The orchestrator (on the host) calls its methods in order: Prepare on both, Listen and
// Connect, Accept; Receive and Send at the same time; Finish on both. In a guest under QEMU the calls arrive by the
// results channel (Ops registers them with the agent); an in-process guest has its Node called directly.
//
// In mode devmem payload goes from GPU memory into the socket and out of it by reference, and an
// engine gathers the received fragments into one contiguous buffer. In mode copy an engine copies
// it to guest RAM, ordinary sockets carry it, and an engine copies it back, both pipelined. The
// guest's CPU touches payload in mode copy only.
//
// A call that is cancelled may go on for a moment in its guest. Finish ends whatever is under way
// and waits for it before it gives anything back: memory is let go of when neither the NIC nor an
// engine nor a socket uses it. It can be called at any time, and again. The package does not know
// what goes on at the other end: who compares both is the orchestrator.
//
// A Node can also take a place in a ring of guests, and do collective operations there (Join, Collective, Leave), and
// have its NIC read or write another's memory, or offer its own for that (OpenRDMA, ConnectRDMA, MoveRDMA, CloseRDMA).
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

// Memory gives memory that the NIC and the engines reach, contiguous for them, kept until the NIC is closed.
type Memory interface {
	AllocDMA(size int) (b []byte, iova uint64, err error)
}

// Engine runs jobs on the guest's GPUs: *control.Client, or *kernelnic.Engine. When RunJob returns
// the job touches no memory any more.
type Engine interface {
	RunJob(ctx context.Context, j control.Job) (control.JobStatus, error)
}

// Node is one guest's end. One transfer is under way at a time; methods may be called from any goroutine.
type Node struct {
	dev    devmem.Device
	engine Engine
	mem    Memory
	cpu    func() CPU
	port   port // of RDMA; its control is nil if the Node's maker sets none
	more   bool // the device is another Node's to close
	late   late

	finishing sync.Mutex // one Finish at a time

	joining sync.Mutex // one Join or Leave at a time
	opening sync.Mutex // guards storage, source and rdma, which it opens and closes
	storage *storage   // nil: none is open
	source  *source    // likewise
	rdma    *rdmaEnd   // likewise

	mu     sync.Mutex // guards what follows, and what session says
	now    *session   // nil: nothing is prepared
	member *member    // nil: in no ring
	memory devmem.Memory

	// For the life of the Node, as DMA memory is not given back; used by the session's Prepare, then
	// by its Receive or Send.
	staging []slot
	linear  slot
	frags   []devmem.Frag
	pinned  *pinned // under mu
}

// NewNode makes a Node of a device, its engines and its memory. cpu reads the guest's CPU time; nil: unknown.
func NewNode(dev devmem.Device, engine Engine, mem Memory, cpu func() CPU) *Node {
	return &Node{dev: dev, engine: engine, mem: mem, cpu: cpu}
}

// Another gives a second Node of the same device, for another transfer at the same time. Its Close ends that, and
// leaves the device to the first's, which comes after.
func (n *Node) Another() *Node {
	other := NewNode(n.dev, n.engine, n.mem, n.cpu)
	other.more, other.port = true, n.port
	return other
}

// PrepareArgs say what is going to be transferred, and from or to where. Offsets are in the GPU's memory, or
// in what the guest has of it (GPU.Extents).
type PrepareArgs struct {
	Mode  string `json:"mode"`
	Send  bool   `json:"send"`
	GPU   int    `json:"gpu"`
	Off   uint64 `json:"off"`   // of the data: source or destination
	Bytes uint64 `json:"bytes"` // whole pages
	Len   uint64 `json:"len"`   // bytes of it that are sent
	Seed  uint64 `json:"seed"`  // of the source's pattern; of the destination's poison, its low byte

	// Of a receiver in mode devmem.
	PoolOff   uint64 `json:"pool_off,omitempty"`
	PoolBytes uint64 `json:"pool_bytes,omitempty"`
	Queues    []int  `json:"queues,omitempty"`

	Local  netip.AddrPort `json:"local"`
	Remote netip.AddrPort `json:"remote"`
	// Hold is how many bytes of tokens, in whole pages, are kept until the end instead of given back (exhaustion tests).
	Hold uint64 `json:"hold,omitempty"`
	// HoldSeconds is after how many seconds without any data they are given back all the same; 0: not before the end.
	HoldSeconds int `json:"hold_seconds,omitempty"`
	// StallSeconds is after how many seconds without progress the transfer fails; 0: 60.
	StallSeconds int `json:"stall_seconds,omitempty"`
}

func (p *PrepareArgs) stall() time.Duration {
	if p.StallSeconds == 0 {
		return limits.Stall.Here()
	}
	return time.Duration(p.StallSeconds) * time.Second
}

// check finds what neither the device nor the engines would refuse, or would refuse too late.
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

// Result is what one end did.
type Result struct {
	Bytes       uint64 `json:"bytes"`
	Linear      uint64 `json:"linear_bytes"` // in mode devmem: payload that came in host memory
	Frags       uint64 `json:"frags"`
	Jobs        uint64 `json:"jobs"`
	Held        uint64 `json:"held,omitempty"`   // tokens that were kept
	Stalls      uint64 `json:"stalls,omitempty"` // how often they were given back, as nothing came any more
	Late        uint64 `json:"late,omitempty"`   // the most tokens at a time that were to go back later
	Retransmits uint64 `json:"retransmits"`      // segments
	CPU         CPU    `json:"cpu"`
}

// measure runs f and fills in what it cost.
func (n *Node) measure(r *Result, f func() error) error {
	before := n.dev.Stats().Retransmits
	var at CPU
	if n.cpu != nil {
		at = n.cpu()
	}
	err := f()
	if n.cpu != nil {
		r.CPU = n.cpu().minus(at)
	}
	r.Retransmits = n.dev.Stats().Retransmits - before
	return err
}
