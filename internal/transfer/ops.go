package transfer

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"sync"
	"syscall"
	"time"

	"vnic.dev/vnic/block"
	"vnic.dev/vnic/devmem"
	"vnic.dev/vnic/internal/agent"
	"vnic.dev/vnic/internal/driver"
	"vnic.dev/vnic/internal/kernelnic"
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
	OpHolders = "transfer.holders"
	OpLate    = "transfer.late"
	OpFinish  = "transfer.finish"
	OpClose   = "transfer.close"

	OpJoin       = "transfer.join"
	OpCollective = "transfer.collective"
	OpLeave      = "transfer.leave"

	OpOpenStorage  = "transfer.open-storage"
	OpIO           = "transfer.io"
	OpCloseStorage = "transfer.close-storage"

	OpOpenSource  = "transfer.open-source"
	OpLoad        = "transfer.load"
	OpCloseSource = "transfer.close-source"

	OpOpenRDMA    = "transfer.open-rdma"
	OpConnectRDMA = "transfer.connect-rdma"
	OpMoveRDMA    = "transfer.move-rdma"
	OpStageRDMA   = "transfer.stage-rdma"
	OpCloseRDMA   = "transfer.close-rdma"
	OpCPUTime     = "transfer.cpu-time"

	OpStartStorm = "transfer.start-storm"
	OpEndStorm   = "transfer.end-storm"
	OpODP        = "transfer.odp"
	OpDigestODP  = "transfer.digest-odp"
	OpReadODP    = "transfer.read-odp"
	OpKillOwner  = "transfer.kill-owner"
	OpBreakPage  = "transfer.break-page"
	OpComplaints = "transfer.complaints"
)

// Modules are the kernel modules that a guest needs for its NIC, and HugePages the 2 MiB pages.
var Modules = []string{"uio_pci_generic"}

// HugePages is how many 2 MiB pages a guest reserves for rings, buffers, tables and staging.
const HugePages = 24

// which is part of the arguments of every operation: the number of the Node that it is for. A guest that has several
// has them all set up before the first transfer; what the host asks of one goes on beside what it asks of another.
type which struct {
	Node int `json:"node,omitempty"`
}

// Setup is the argument of OpSetup.
type Setup struct {
	// the NIC, by the PCI address or, if it is the kernel's, by the interface's name; "": the only one. For one that
	// another Node has already it makes a further Node, which is closed before.
	Interface string `json:"interface,omitempty"`
	// the NIC is the kernel's, and so is device memory TCP; else both are ours
	Kernel     bool           `json:"kernel,omitempty"`
	Addrs      []netip.Prefix `json:"addrs"`
	Gateways   []netip.Addr   `json:"gateways,omitempty"` // default routes, one for each family
	MTU        int            `json:"mtu"`
	QueuePairs int            `json:"queue_pairs"`
	// receive queues, from 0, for ordinary traffic; the others can be bound
	HostQueues int    `json:"host_queues"`
	Window     uint64 `json:"window,omitempty"` // Kernel: bytes to take of the GPU's node
	GPU        *int   `json:"gpu,omitempty"`    // Kernel: of which; nil: of the first
	Loss       Loss   `json:"loss,omitempty"`
}

// SetupResult is its result: what the guest found.
type SetupResult struct {
	MAC        string `json:"mac"`
	QueuePairs int    `json:"queue_pairs"`
	GPUs       []GPU  `json:"gpus"`
}

// GPU is a GPU as a guest sees it: all of its memory, as a PCI device, or a window of it, whose
// parts are in GPU memory where Extents say.
type GPU struct {
	ID      int                `json:"id"`
	Size    uint64             `json:"size"`
	PCI     string             `json:"pci,omitempty"`
	Extents []kernelnic.Extent `json:"extents,omitempty"`
}

// Ops registers the operations with the agent of this process, whose Nodes they share.
func Ops() {
	for name, op := range (&host{open: openNIC}).ops() {
		agent.Register(name, op)
	}
}

func openNIC(ctx context.Context, s Setup) (*Node, SetupResult, error) {
	if s.Kernel {
		return openKernel(ctx, s)
	}
	return openPCI(ctx, s)
}

// openKernel opens a NIC of the kernel's. It can be open several times, each with a window of its own.
func openKernel(ctx context.Context, s Setup) (*Node, SetupResult, error) {
	n, err := kernelnic.Open(ctx, kernelnic.Options{Interface: s.Interface, Addrs: s.Addrs, Gateways: s.Gateways,
		MTU: s.MTU, Window: s.Window, GPU: s.GPU, HostQueues: s.HostQueues, Lossless: s.Loss != LinkLoss})
	if err != nil {
		return nil, SetupResult{}, err
	}
	if n.Queues() < s.QueuePairs {
		return nil, SetupResult{}, errors.Join(fmt.Errorf("%d queues of %d: %w", n.Queues(), s.QueuePairs, syscall.ENODEV),
			n.Close())
	}
	w := n.Window()
	r := SetupResult{MAC: n.MAC().String(), QueuePairs: n.Queues(),
		GPUs: []GPU{{ID: int(n.GPU().ID), Size: w.Size(), Extents: w.Extents()}}}
	node := NewNode(n.Device(), n.Engine(), n.Memory(), func() CPU {
		c, _ := ProcStat() // times of 0 say that there was an error
		return c
	})
	node.port = port{control: n.Control(), mac: [6]byte(n.MAC()), register: n.Register}
	return node, r, nil
}

// openPCI opens a NIC with our driver.
func openPCI(ctx context.Context, s Setup) (*Node, SetupResult, error) {
	n, err := driver.OpenPCI(driver.PCIOptions{Address: s.Interface, Options: driver.Options{QueuePairs: s.QueuePairs,
		HostQueues: s.HostQueues}})
	if err != nil {
		return nil, SetupResult{}, err
	}
	if err := n.IdentifyGPUs(ctx); err != nil {
		return nil, SetupResult{}, errors.Join(err, n.Close())
	}
	r := SetupResult{MAC: n.MAC().String(), QueuePairs: n.QueuePairs()}
	for _, g := range n.GPUs() {
		r.GPUs = append(r.GPUs, GPU{ID: g.ID, Size: g.Size, PCI: g.PCI})
	}
	node, err := Open(n, s.Addrs, s.Gateways, s.MTU, s.Loss, ProcStat)
	return node, r, err
}

// host is what the operations share.
type host struct {
	open func(context.Context, Setup) (*Node, SetupResult, error)

	setup sync.Mutex       // one Setup or Close at a time
	first map[string]first // under setup: by interface, those that are not the kernel's

	mu    sync.Mutex
	nodes map[int]*Node // under mu
}

// first is the Node that has opened a NIC.
type first struct {
	*Node
	found SetupResult
}

func (h *host) get(number int) (*Node, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.nodes[number] == nil {
		return nil, fmt.Errorf("no NIC: %s comes first: %w", OpSetup, syscall.EINVAL)
	}
	return h.nodes[number], nil
}

// set puts a Node at a number; nil: takes it away.
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

// op is an operation on a Node, with its arguments.
func op[A any](h *host, f func(ctx context.Context, n *Node, args A) (any, error)) agent.Op {
	return func(ctx context.Context, raw json.RawMessage) (any, error) {
		var w which
		var args A
		if len(raw) > 0 {
			if err := errors.Join(json.Unmarshal(raw, &w), json.Unmarshal(raw, &args)); err != nil {
				return nil, err
			}
		}
		n, err := h.get(w.Node)
		if err != nil {
			return nil, err
		}
		return f(ctx, n, args)
	}
}

type none struct{}

// lateBy is the argument of OpLate.
type lateBy struct {
	Nanoseconds int64 `json:"nanoseconds"`
}

// openSource is the argument of OpOpenSource.
type openSource struct {
	Source
	Tensors bool `json:"tensors,omitempty"`
}

// ops are the operations by name.
func (h *host) ops() map[string]agent.Op {
	return map[string]agent.Op{
		OpSetup:   h.opSetup,
		OpClose:   h.opClose,
		OpPrepare: op(h, func(ctx context.Context, n *Node, p Prepare) (any, error) { return nil, n.Prepare(ctx, p) }),
		OpListen:  op(h, func(ctx context.Context, n *Node, _ none) (any, error) { return nil, n.Listen(ctx) }),
		OpConnect: op(h, func(ctx context.Context, n *Node, _ none) (any, error) { return nil, n.Connect(ctx) }),
		OpAccept:  op(h, func(ctx context.Context, n *Node, _ none) (any, error) { return nil, n.Accept(ctx) }),
		OpReceive: op(h, func(ctx context.Context, n *Node, _ none) (any, error) { return n.Receive(ctx) }),
		OpSend:    op(h, func(ctx context.Context, n *Node, _ none) (any, error) { return n.Send(ctx) }),
		OpState:   op(h, func(ctx context.Context, n *Node, _ none) (any, error) { return n.State(ctx), nil }),
		OpHolders: op(h, func(ctx context.Context, n *Node, _ none) (any, error) { return n.Holders(ctx) }),
		OpLate: op(h, func(ctx context.Context, n *Node, l lateBy) (any, error) {
			return nil, n.LateTokens(ctx, time.Duration(l.Nanoseconds))
		}),
		OpJoin: op(h, func(ctx context.Context, n *Node, r Rank) (any, error) { return nil, n.Join(ctx, r) }),
		OpCollective: op(h, func(ctx context.Context, n *Node, c Collective) (any, error) {
			return n.Collective(ctx, c)
		}),
		OpLeave:       op(h, func(ctx context.Context, n *Node, _ none) (any, error) { return nil, n.Leave(ctx) }),
		OpOpenStorage: op(h, func(ctx context.Context, n *Node, s Storage) (any, error) { return n.OpenStorage(ctx, s) }),
		OpIO:          op(h, func(ctx context.Context, n *Node, x IO) (any, error) { return n.DoIO(ctx, x) }),
		OpCloseStorage: op(h, func(ctx context.Context, n *Node, _ none) (any, error) {
			return nil, n.CloseStorage(ctx)
		}),
		OpOpenSource: op(h, func(ctx context.Context, n *Node, s openSource) (any, error) {
			return n.OpenSource(ctx, s.Source, s.Tensors)
		}),
		OpLoad: op(h, func(ctx context.Context, n *Node, l Load) (any, error) { return n.Load(ctx, l) }),
		OpCloseSource: op(h, func(ctx context.Context, n *Node, _ none) (any, error) {
			return nil, n.CloseSource(ctx)
		}),
		OpOpenRDMA: op(h, func(ctx context.Context, n *Node, r RDMA) (any, error) { return n.OpenRDMA(ctx, r) }),
		OpConnectRDMA: op(h, func(ctx context.Context, n *Node, _ none) (any, error) {
			return n.ConnectRDMA(ctx)
		}),
		OpMoveRDMA: op(h, func(ctx context.Context, n *Node, m RDMAMove) (any, error) { return n.MoveRDMA(ctx, m) }),
		OpStageRDMA: op(h, func(ctx context.Context, n *Node, s RDMAStage) (any, error) {
			return nil, n.StageRDMA(ctx, s)
		}),
		OpCloseRDMA: op(h, func(ctx context.Context, n *Node, _ none) (any, error) { return nil, n.CloseRDMA(ctx) }),
		OpStartStorm: op(h, func(ctx context.Context, n *Node, s Storm) (any, error) {
			return nil, n.StartStorm(ctx, s)
		}),
		OpEndStorm:   op(h, func(ctx context.Context, n *Node, _ none) (any, error) { return nil, n.EndStorm(ctx) }),
		OpODP:        op(h, func(ctx context.Context, n *Node, _ none) (any, error) { return n.ODP(ctx) }),
		OpDigestODP:  op(h, func(ctx context.Context, n *Node, _ none) (any, error) { return n.DigestODP(ctx) }),
		OpReadODP:    op(h, func(ctx context.Context, n *Node, b Bytes) (any, error) { return n.ReadODP(ctx, b) }),
		OpKillOwner:  op(h, func(ctx context.Context, n *Node, _ none) (any, error) { return n.KillOwner(ctx) }),
		OpBreakPage:  op(h, func(ctx context.Context, n *Node, p Page) (any, error) { return nil, n.BreakPage(ctx, p) }),
		OpComplaints: op(h, func(ctx context.Context, n *Node, _ none) (any, error) { return n.Complaints(ctx) }),
		OpCPUTime:    op(h, func(ctx context.Context, n *Node, _ none) (any, error) { return n.CPUTime(ctx) }),
		OpFinish:     op(h, func(ctx context.Context, n *Node, _ none) (any, error) { return nil, n.Finish(ctx) }),
	}
}

func (h *host) opSetup(ctx context.Context, args json.RawMessage) (any, error) {
	var s struct {
		which
		Setup
	}
	if err := json.Unmarshal(args, &s); err != nil {
		return nil, err
	}
	h.setup.Lock()
	defer h.setup.Unlock()
	if n, _ := h.get(s.Node); n != nil {
		return nil, fmt.Errorf("set up already: %w", syscall.EBUSY)
	}
	if f, found := h.first[s.Interface]; found && !s.Kernel {
		h.set(s.Node, f.Another())
		return f.found, nil
	}
	n, r, err := h.open(ctx, s.Setup)
	if err != nil {
		return nil, err
	}
	if !s.Kernel {
		if h.first == nil {
			h.first = make(map[string]first)
		}
		h.first[s.Interface] = first{n, r}
	}
	h.set(s.Node, n)
	return r, nil
}

func (h *host) opClose(_ context.Context, args json.RawMessage) (any, error) {
	var w which
	if len(args) > 0 {
		if err := json.Unmarshal(args, &w); err != nil {
			return nil, err
		}
	}
	h.setup.Lock()
	defer h.setup.Unlock()
	n, _ := h.get(w.Node)
	if n == nil {
		return nil, nil
	}
	h.set(w.Node, nil)
	maps.DeleteFunc(h.first, func(_ string, f first) bool { return f.Node == n })
	return nil, n.Close()
}

// Remote is a Node of a guest, behind its agent.
type Remote struct {
	Agent *agent.Client
	Node  int // its number: 0 of the only one
}

func (r Remote) call(ctx context.Context, op string, out any) error {
	return r.Agent.Call(ctx, op, which{r.Node}, out)
}

// Setup sets a NIC of the guest's and its stack up.
func (r Remote) Setup(ctx context.Context, s Setup) (res SetupResult, err error) {
	err = r.Agent.Call(ctx, OpSetup, struct {
		which
		Setup
	}{which{r.Node}, s}, &res)
	return res, err
}

// Prepare is Node.Prepare; so are the methods below.
func (r Remote) Prepare(ctx context.Context, p Prepare) error {
	return r.Agent.Call(ctx, OpPrepare, struct {
		which
		Prepare
	}{which{r.Node}, p}, nil)
}

// LateTokens is Node.LateTokens.
func (r Remote) LateTokens(ctx context.Context, by time.Duration) error {
	return r.Agent.Call(ctx, OpLate, struct {
		which
		lateBy
	}{which{r.Node}, lateBy{by.Nanoseconds()}}, nil)
}

// Listen is Node.Listen.
func (r Remote) Listen(ctx context.Context) error { return r.call(ctx, OpListen, nil) }

// Connect is Node.Connect.
func (r Remote) Connect(ctx context.Context) error { return r.call(ctx, OpConnect, nil) }

// Accept is Node.Accept.
func (r Remote) Accept(ctx context.Context) error { return r.call(ctx, OpAccept, nil) }

// Receive is Node.Receive.
func (r Remote) Receive(ctx context.Context) (res Result, err error) {
	err = r.call(ctx, OpReceive, &res)
	return res, err
}

// Send is Node.Send.
func (r Remote) Send(ctx context.Context) (res Result, err error) {
	err = r.call(ctx, OpSend, &res)
	return res, err
}

// State is Node.State.
func (r Remote) State(ctx context.Context) (s string) {
	if err := r.call(ctx, OpState, &s); err != nil {
		return "unknown: " + err.Error()
	}
	return s
}

// Holders is Node.Holders.
func (r Remote) Holders(ctx context.Context) (list []devmem.Holder, err error) {
	err = r.call(ctx, OpHolders, &list)
	return list, err
}

// Finish is Node.Finish.
func (r Remote) Finish(ctx context.Context) error { return r.call(ctx, OpFinish, nil) }

// Join is Node.Join.
func (r Remote) Join(ctx context.Context, x Rank) error {
	return r.Agent.Call(ctx, OpJoin, struct {
		which
		Rank
	}{which{r.Node}, x}, nil)
}

// Collective is Node.Collective.
func (r Remote) Collective(ctx context.Context, c Collective) (res CollectiveResult, err error) {
	err = r.Agent.Call(ctx, OpCollective, struct {
		which
		Collective
	}{which{r.Node}, c}, &res)
	return res, err
}

// Leave is Node.Leave.
func (r Remote) Leave(ctx context.Context) error { return r.call(ctx, OpLeave, nil) }

// OpenStorage is Node.OpenStorage.
func (r Remote) OpenStorage(ctx context.Context, s Storage) (res block.Info, err error) {
	err = r.Agent.Call(ctx, OpOpenStorage, struct {
		which
		Storage
	}{which{r.Node}, s}, &res)
	return res, err
}

// DoIO is Node.DoIO.
func (r Remote) DoIO(ctx context.Context, x IO) (res IOResult, err error) {
	err = r.Agent.Call(ctx, OpIO, struct {
		which
		IO
	}{which{r.Node}, x}, &res)
	return res, err
}

// CloseStorage is Node.CloseStorage.
func (r Remote) CloseStorage(ctx context.Context) error { return r.call(ctx, OpCloseStorage, nil) }

// OpenSource is Node.OpenSource.
func (r Remote) OpenSource(ctx context.Context, s Source, tensors bool) (res SourceInfo, err error) {
	err = r.Agent.Call(ctx, OpOpenSource, struct {
		which
		openSource
	}{which{r.Node}, openSource{s, tensors}}, &res)
	return res, err
}

// Load is Node.Load.
func (r Remote) Load(ctx context.Context, l Load) (res LoadResult, err error) {
	err = r.Agent.Call(ctx, OpLoad, struct {
		which
		Load
	}{which{r.Node}, l}, &res)
	return res, err
}

// CloseSource is Node.CloseSource.
func (r Remote) CloseSource(ctx context.Context) error { return r.call(ctx, OpCloseSource, nil) }

// OpenRDMA is Node.OpenRDMA.
func (r Remote) OpenRDMA(ctx context.Context, x RDMA) (res RDMAInfo, err error) {
	err = r.Agent.Call(ctx, OpOpenRDMA, struct {
		which
		RDMA
	}{which{r.Node}, x}, &res)
	return res, err
}

// ConnectRDMA is Node.ConnectRDMA.
func (r Remote) ConnectRDMA(ctx context.Context) (res RDMAPath, err error) {
	err = r.call(ctx, OpConnectRDMA, &res)
	return res, err
}

// MoveRDMA is Node.MoveRDMA.
func (r Remote) MoveRDMA(ctx context.Context, m RDMAMove) (res RDMAResult, err error) {
	err = r.Agent.Call(ctx, OpMoveRDMA, struct {
		which
		RDMAMove
	}{which{r.Node}, m}, &res)
	return res, err
}

// StageRDMA is Node.StageRDMA.
func (r Remote) StageRDMA(ctx context.Context, s RDMAStage) error {
	return r.Agent.Call(ctx, OpStageRDMA, struct {
		which
		RDMAStage
	}{which{r.Node}, s}, nil)
}

// CloseRDMA is Node.CloseRDMA.
func (r Remote) CloseRDMA(ctx context.Context) error { return r.call(ctx, OpCloseRDMA, nil) }

// CPUTime is Node.CPUTime.
func (r Remote) CPUTime(ctx context.Context) (c CPU, err error) {
	err = r.call(ctx, OpCPUTime, &c)
	return c, err
}

// Close is Node.Close. The guest's NIC can be set up again after.
func (r Remote) Close(ctx context.Context) error { return r.call(ctx, OpClose, nil) }
