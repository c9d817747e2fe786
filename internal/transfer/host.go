package transfer

import (
	"context"
	"fmt"
	"maps"
	"sync"
	"syscall"

	"vnic.dev/vnic/internal/agent"
)

// host has the Nodes of a guest, for its agent's operations.
type host struct {
	open func(context.Context, SetupArgs) (*Node, SetupResult, error)

	setup sync.Mutex       // one Setup or Close at a time
	first map[string]first // under setup, by SetupArgs.Interface: the first Node of each NIC with vnic's driver

	mu    sync.Mutex
	nodes map[int]*Node // under mu, by request.Node
}

type first struct {
	*Node
	found SetupResult
}

func (h *host) get(number int) (*Node, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.nodes[number] == nil {
		return nil, fmt.Errorf("no NIC: %s comes first: %w", setupName, syscall.EINVAL)
	}
	return h.nodes[number], nil
}

func (h *host) set(number int, n *Node) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.nodes == nil {
		h.nodes = make(map[int]*Node)
	}
	if h.nodes[number] = n; n == nil {
		delete(h.nodes, number)
	}
}

// Ops registers the operations of Nodes, Setup and Close with the agent of this process.
func Ops() {
	for name, op := range (&host{open: openNIC}).ops() {
		agent.Register(name, op)
	}
}

func (h *host) ops() map[string]agent.Op {
	all := map[string]agent.Op{setupName: agent.Decoded(h.setUp), closeName: agent.Decoded(h.closeNode)}
	for name, op := range served {
		all[name] = op(h)
	}
	return all
}

func (h *host) setUp(ctx context.Context, q request[SetupArgs]) (any, error) {
	s := q.Args
	h.setup.Lock()
	defer h.setup.Unlock()
	if n, _ := h.get(q.Node); n != nil {
		return nil, fmt.Errorf("set up already: %w", syscall.EBUSY)
	}
	if f, found := h.first[s.Interface]; found && !s.Kernel {
		h.set(q.Node, f.Another())
		return f.found, nil
	}
	n, r, err := h.open(ctx, s)
	if err != nil {
		return nil, err
	}
	if !s.Kernel {
		if h.first == nil {
			h.first = make(map[string]first)
		}
		h.first[s.Interface] = first{n, r}
	}
	h.set(q.Node, n)
	return r, nil
}

func (h *host) closeNode(_ context.Context, q request[agent.None]) (any, error) {
	h.setup.Lock()
	defer h.setup.Unlock()
	n, _ := h.get(q.Node)
	if n == nil {
		return nil, nil
	}
	h.set(q.Node, nil)
	maps.DeleteFunc(h.first, func(_ string, f first) bool { return f.Node == n })
	return nil, n.Close()
}
