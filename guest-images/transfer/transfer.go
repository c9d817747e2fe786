// Package transfer moves a buffer from one guest's GPU memory to another's and says what it cost: the guests' part of
// `vnic run`.
//
// A Node is one guest's end. The orchestrator (on the host) calls its methods in order: Prepare on both, Listen and
// Connect, Accept; Receive and Send at the same time; Finish on both. In a guest under QEMU the calls arrive by the
// results channel (Ops registers them with the agent); an in-process guest has its Node called directly.
//
// In mode devmem payload goes from GPU memory into the socket and out of it by reference, and an engine gathers the
// received fragments into one contiguous buffer. In mode copy an engine copies it to guest RAM, ordinary sockets carry it,
// and an engine copies it back, both pipelined. The guest's CPU touches payload in mode copy only.
package transfer

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"syscall"
	"time"

	"vnic.dev/vnic/control"
	"vnic.dev/vnic/devmem"
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

// Node is one guest's end. One transfer is under way at a time.
type Node struct {
	dev devmem.Device
	ctl *control.Client
	mem Memory
	cpu func() CPU

	mu       sync.Mutex // guards what follows: State is asked for while something hangs
	conf     Prepare
	listener devmem.Listener
	conn     devmem.Conn

	data, pool devmem.Buffer
	rx, tx     devmem.Binding
	flow       devmem.FlowID
	staging    []slot // for the life of the Node: DMA memory is not given back
}

// NewNode makes a Node of a device, its control channel and its memory. cpu reads the guest's CPU time; nil: unknown.
func NewNode(dev devmem.Device, ctl *control.Client, mem Memory, cpu func() CPU) *Node {
	return &Node{dev: dev, ctl: ctl, mem: mem, cpu: cpu}
}

// Prepare says what is going to be transferred, and from or to where. Offsets are in the GPU's memory.
type Prepare struct {
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
	// Hold is how many bytes of tokens are kept until the end instead of given back (exhaustion tests).
	Hold uint64 `json:"hold,omitempty"`
	// StallSeconds is after how many seconds without progress the transfer fails; 0: 60.
	StallSeconds int `json:"stall_seconds,omitempty"`
}

// Result is what one end did.
type Result struct {
	Bytes       uint64 `json:"bytes"`
	Linear      uint64 `json:"linear_bytes"` // in mode devmem: payload that came in host memory
	Frags       uint64 `json:"frags"`
	Jobs        uint64 `json:"jobs"`
	Retransmits uint64 `json:"retransmits"` // segments
	CPU         CPU    `json:"cpu"`
}

// Prepare registers, binds, fills and poisons what the transfer needs.
func (n *Node) Prepare(ctx context.Context, p Prepare) (err error) {
	if p.Mode != Devmem && p.Mode != Copy {
		return fmt.Errorf("mode %q: neither %q nor %q: %w", p.Mode, Devmem, Copy, syscall.EINVAL)
	}
	n.mu.Lock()
	n.conf = p
	n.mu.Unlock()
	defer func() {
		if err != nil {
			_ = n.Finish(ctx)
		}
	}()
	if n.data, err = n.dev.Register(p.GPU, p.Off, p.Bytes); err != nil {
		return fmt.Errorf("register data [%#x, +%#x) of GPU %d: %w", p.Off, p.Bytes, p.GPU, err)
	}
	job := control.Job{Op: control.JobPoison, GPU: uint16(p.GPU), Off: p.Off, Len: p.Bytes, Seed: p.Seed}
	if p.Send {
		job.Op, job.Len = control.JobFill, p.Len
	}
	if _, err = n.ctl.RunJob(ctx, job); err != nil {
		return fmt.Errorf("fill data: %w", err)
	}
	if p.Mode == Copy {
		return n.makeStaging()
	}
	if p.Send {
		if n.tx, err = n.dev.BindTX(n.data); err != nil {
			return fmt.Errorf("bind-tx: %w", err)
		}
		return nil
	}
	if n.pool, err = n.dev.Register(p.GPU, p.PoolOff, p.PoolBytes); err != nil {
		return fmt.Errorf("register pool: %w", err)
	}
	job.Off, job.Len = p.PoolOff, p.PoolBytes
	if _, err = n.ctl.RunJob(ctx, job); err != nil {
		return fmt.Errorf("poison pool: %w", err)
	}
	if n.rx, err = n.dev.BindRX(n.pool, p.Queues...); err != nil {
		return fmt.Errorf("bind-rx: %w", err)
	}
	if n.flow, err = n.dev.AddFlow(devmem.Flow{Src: p.Remote, Dst: p.Local, Queue: p.Queues[0]}); err != nil {
		return fmt.Errorf("flow rule: %w", err)
	}
	return n.makeStaging()
}

// Listen opens the receiver's socket.
func (n *Node) Listen(context.Context) error {
	l, err := n.dev.Listen(n.conf.Local)
	if err != nil {
		return fmt.Errorf("listen on %v: %w", n.conf.Local, err)
	}
	n.mu.Lock()
	n.listener = l
	n.mu.Unlock()
	return nil
}

// Connect connects the sender.
func (n *Node) Connect(ctx context.Context) error {
	c, err := n.dev.Dial(ctx, n.conf.Local, n.conf.Remote)
	if err != nil {
		return fmt.Errorf("connect %v to %v: %w", n.conf.Local, n.conf.Remote, err)
	}
	n.took(c)
	return nil
}

// Accept takes the sender's connection.
func (n *Node) Accept(ctx context.Context) error {
	l := n.listener
	if l == nil {
		return fmt.Errorf("accept: not listening: %w", syscall.EINVAL)
	}
	stop := context.AfterFunc(ctx, func() { _ = l.Close() })
	defer stop()
	c, err := l.AcceptConn()
	if err != nil {
		return fmt.Errorf("accept on %v: %w", n.conf.Local, errors.Join(ctx.Err(), err))
	}
	n.took(c)
	return nil
}

func (n *Node) took(c devmem.Conn) {
	limit := time.Duration(n.conf.StallSeconds) * time.Second
	if limit == 0 {
		limit = time.Minute
	}
	c.SetStallLimit(limit)
	n.mu.Lock()
	n.conn = c
	n.mu.Unlock()
}

// State describes the connection's TCP state.
func (n *Node) State(context.Context) string {
	n.mu.Lock()
	c := n.conn
	n.mu.Unlock()
	if c == nil {
		return "no connection"
	}
	return c.State()
}

// Finish lets go of everything that Prepare and the rest made.
func (n *Node) Finish(context.Context) error {
	n.mu.Lock()
	conn, listener := n.conn, n.listener
	n.conn, n.listener = nil, nil
	n.mu.Unlock()
	var errs []error
	note := func(what string, err error) {
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", what, err))
		}
	}
	if conn != nil {
		note("close connection", conn.Close())
	}
	if listener != nil {
		note("close listener", listener.Close())
	}
	if n.flow != 0 {
		note("flow rule", n.dev.DelFlow(n.flow))
		n.flow = 0
	}
	for _, b := range []*devmem.Binding{&n.rx, &n.tx} {
		if *b != nil {
			note("unbind", (*b).Close())
			select { // the buffer can be let go of only then
			case <-(*b).Done():
			case <-time.After(10 * time.Second):
				note("unbind", errors.New("memory still in use after 10 s"))
			}
			*b = nil
		}
	}
	for _, b := range []*devmem.Buffer{&n.pool, &n.data} {
		if *b != nil {
			note("close buffer", (*b).Close())
			*b = nil
		}
	}
	return errors.Join(errs...)
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
