package transfer

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"syscall"

	"vnic.dev/vnic/driver"
	"vnic.dev/vnic/guest-images/agent"
)

// Names of the operations of a guest's agent; each is the Node's method of that name.
const (
	OpSetup   = "transfer.setup"
	OpPrepare = "transfer.prepare"
	OpListen  = "transfer.listen"
	OpConnect = "transfer.connect"
	OpAccept  = "transfer.accept"
	OpReceive = "transfer.receive"
	OpSend    = "transfer.send"
	OpState   = "transfer.state"
	OpFinish  = "transfer.finish"
	OpClose   = "transfer.close"
)

// Modules are the kernel modules that a guest needs for its NIC, and HugePages the 2 MiB pages.
var Modules = []string{"uio_pci_generic"}

// HugePages is how many 2 MiB pages a guest reserves for rings, buffers, tables and staging.
const HugePages = 24

// Setup is the argument of OpSetup.
type Setup struct {
	Addrs      []netip.Prefix `json:"addrs"`
	MTU        int            `json:"mtu"`
	QueuePairs int            `json:"queue_pairs"`
	Lossy      bool           `json:"lossy,omitempty"` // the link loses segments: recover by RACK
}

// SetupResult is its result: what the guest found.
type SetupResult struct {
	MAC        string `json:"mac"`
	QueuePairs int    `json:"queue_pairs"`
	GPUs       []GPU  `json:"gpus"`
}

// GPU is a GPU as a guest sees it.
type GPU struct {
	ID   int    `json:"id"`
	Size uint64 `json:"size"`
	PCI  string `json:"pci"`
}

// Ops registers the operations with the agent of this process, whose Node they share.
func Ops() {
	var mu sync.Mutex
	var node *Node
	get := func() (*Node, error) {
		mu.Lock()
		defer mu.Unlock()
		if node == nil {
			return nil, fmt.Errorf("no NIC: %s comes first: %w", OpSetup, syscall.EINVAL)
		}
		return node, nil
	}
	agent.Register(OpSetup, func(ctx context.Context, args json.RawMessage) (any, error) {
		var s Setup
		if err := json.Unmarshal(args, &s); err != nil {
			return nil, err
		}
		mu.Lock()
		defer mu.Unlock()
		if node != nil {
			return nil, fmt.Errorf("set up already: %w", syscall.EBUSY)
		}
		n, err := driver.OpenPCI(driver.PCIOptions{Options: driver.Options{QueuePairs: s.QueuePairs, HostQueues: 1}})
		if err != nil {
			return nil, err
		}
		if err := n.IdentifyGPUs(ctx); err != nil {
			return nil, errors.Join(err, n.Close())
		}
		r := SetupResult{MAC: n.MAC().String(), QueuePairs: n.QueuePairs()}
		for _, g := range n.GPUs() {
			r.GPUs = append(r.GPUs, GPU{ID: g.ID, Size: g.Size, PCI: g.PCI})
		}
		if node, err = Open(n, s.Addrs, s.MTU, s.Lossy, ProcStat); err != nil {
			return nil, err
		}
		return r, nil
	})
	agent.Register(OpPrepare, func(ctx context.Context, args json.RawMessage) (any, error) {
		n, err := get()
		if err != nil {
			return nil, err
		}
		var p Prepare
		if err := json.Unmarshal(args, &p); err != nil {
			return nil, err
		}
		return nil, n.Prepare(ctx, p)
	})
	for name, f := range map[string]func(*Node, context.Context) (any, error){
		OpListen:  func(n *Node, ctx context.Context) (any, error) { return nil, n.Listen(ctx) },
		OpConnect: func(n *Node, ctx context.Context) (any, error) { return nil, n.Connect(ctx) },
		OpAccept:  func(n *Node, ctx context.Context) (any, error) { return nil, n.Accept(ctx) },
		OpReceive: func(n *Node, ctx context.Context) (any, error) { return n.Receive(ctx) },
		OpSend:    func(n *Node, ctx context.Context) (any, error) { return n.Send(ctx) },
		OpState:   func(n *Node, ctx context.Context) (any, error) { return n.State(ctx), nil },
		OpFinish:  func(n *Node, ctx context.Context) (any, error) { return nil, n.Finish(ctx) },
	} {
		agent.Register(name, func(ctx context.Context, _ json.RawMessage) (any, error) {
			n, err := get()
			if err != nil {
				return nil, err
			}
			return f(n, ctx)
		})
	}
	agent.Register(OpClose, func(context.Context, json.RawMessage) (any, error) {
		mu.Lock()
		defer mu.Unlock()
		if node == nil {
			return nil, nil
		}
		err := node.Close()
		node = nil
		return nil, err
	})
}

// Remote is the Node of a guest, behind its agent.
type Remote struct{ Agent *agent.Client }

// Setup sets the guest's NIC and stack up.
func (r Remote) Setup(ctx context.Context, s Setup) (res SetupResult, err error) {
	err = r.Agent.Call(ctx, OpSetup, s, &res)
	return res, err
}

// Prepare is Node.Prepare; so are the methods below.
func (r Remote) Prepare(ctx context.Context, p Prepare) error {
	return r.Agent.Call(ctx, OpPrepare, p, nil)
}

// Listen is Node.Listen.
func (r Remote) Listen(ctx context.Context) error { return r.Agent.Call(ctx, OpListen, nil, nil) }

// Connect is Node.Connect.
func (r Remote) Connect(ctx context.Context) error { return r.Agent.Call(ctx, OpConnect, nil, nil) }

// Accept is Node.Accept.
func (r Remote) Accept(ctx context.Context) error { return r.Agent.Call(ctx, OpAccept, nil, nil) }

// Receive is Node.Receive.
func (r Remote) Receive(ctx context.Context) (res Result, err error) {
	err = r.Agent.Call(ctx, OpReceive, nil, &res)
	return res, err
}

// Send is Node.Send.
func (r Remote) Send(ctx context.Context) (res Result, err error) {
	err = r.Agent.Call(ctx, OpSend, nil, &res)
	return res, err
}

// State is Node.State.
func (r Remote) State(ctx context.Context) (s string) {
	if err := r.Agent.Call(ctx, OpState, nil, &s); err != nil {
		return "unknown: " + err.Error()
	}
	return s
}

// Finish is Node.Finish.
func (r Remote) Finish(ctx context.Context) error { return r.Agent.Call(ctx, OpFinish, nil, nil) }
