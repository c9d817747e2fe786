package transfer

import (
	"context"

	"vnic.dev/vnic/internal/agent"
)

// The table of operations. Ops registers each in a guest under prefix and its name; calling the variable requests it
// from a Guest.
var (
	Prepare    = opNoResult("prepare", (*Node).Prepare)
	Listen     = opPlain("listen", (*Node).Listen)
	Connect    = opPlain("connect", (*Node).Connect)
	Accept     = opPlain("accept", (*Node).Accept)
	Receive    = opNoArgs("receive", (*Node).Receive)
	Send       = opNoArgs("send", (*Node).Send)
	state      = opNoArgs("state", func(n *Node, ctx context.Context) (string, error) { return n.State(ctx), nil })
	Holders    = opNoArgs("holders", (*Node).Holders)
	LateTokens = opNoResult("late", (*Node).LateTokens)
	Finish     = opPlain("finish", (*Node).Finish)
	CPUTime    = opNoArgs("cpu-time", (*Node).CPUTime)

	Join       = opNoResult("join", (*Node).Join)
	Collective = op("collective", (*Node).Collective)
	Leave      = opPlain("leave", (*Node).Leave)

	OpenStorage  = op("open-storage", (*Node).OpenStorage)
	DoIO         = op("io", (*Node).DoIO)
	CloseStorage = opPlain("close-storage", (*Node).CloseStorage)

	OpenSource  = op("open-source", (*Node).OpenSource)
	Load        = op("load", (*Node).Load)
	CloseSource = opPlain("close-source", (*Node).CloseSource)

	OpenRDMA    = op("open-rdma", (*Node).OpenRDMA)
	ConnectRDMA = opNoArgs("connect-rdma", (*Node).ConnectRDMA)
	MoveRDMA    = op("move-rdma", (*Node).MoveRDMA)
	StageRDMA   = opNoResult("stage-rdma", (*Node).StageRDMA)
	CloseRDMA   = opPlain("close-rdma", (*Node).CloseRDMA)

	StartStorm = opNoResult("start-storm", (*Node).StartStorm)
	EndStorm   = opPlain("end-storm", (*Node).EndStorm)
	ODP        = opNoArgs("odp", (*Node).ODP)
	DigestODP  = opNoArgs("digest-odp", (*Node).DigestODP)
	ReadODP    = op("read-odp", (*Node).ReadODP)
	KillOwner  = opNoArgs("kill-owner", (*Node).KillOwner)
	BreakPage  = opNoResult("break-page", (*Node).BreakPage)
	Complaints = opNoArgs("complaints", (*Node).Complaints)
)

const (
	prefix    = "transfer."
	setupName = prefix + "setup"
	closeName = prefix + "close"
)

// Guest is a Node in this process, or a Remote, which calls a guest's agent.
type Guest interface {
	// Do runs an operation. Callers use the table instead.
	Do(ctx context.Context, c Call) error
}

// Call is an operation with its arguments, and where its result goes.
type Call struct {
	Name   string
	args   any
	result any // a pointer
	run    func(n *Node) error
}

// Do runs an operation of this Node.
func (n *Node) Do(_ context.Context, c Call) error { return c.run(n) }

// Remote is a Node in a guest, called through the guest's agent.
type Remote struct {
	Agent *agent.Client
	Node  int // the Node's number in the guest, which the caller chooses; 0 if there is only one
}

// request carries an operation's arguments to a Node.
type request[A any] struct {
	Node int `json:"node,omitempty"`
	Args A   `json:"args"`
}

// Do requests the operation from the guest, and waits until it or ctx ends.
func (r Remote) Do(ctx context.Context, c Call) error {
	return r.Agent.Call(ctx, c.Name, request[any]{r.Node, c.args}, c.result)
}

// Setup opens a NIC in the guest and makes r.Node of it, or makes r.Node an additional Node of an open NIC
// (SetupArgs.Interface). EBUSY: r.Node is set up already.
func (r Remote) Setup(ctx context.Context, s SetupArgs) (res SetupResult, err error) {
	err = r.Do(ctx, Call{Name: setupName, args: s, result: &res})
	return res, err
}

// Close calls Node.Close in the guest, if r.Node is set up. Setup may then be called again.
func (r Remote) Close(ctx context.Context) error {
	return r.Do(ctx, Call{Name: closeName, args: agent.None{}})
}

// State returns the TCP state of a Guest's connection, or why it is unknown.
func State(ctx context.Context, g Guest) string {
	s, err := state(ctx, g)
	if err != nil {
		return "unknown: " + err.Error()
	}
	return s
}

// served are operations by name, with arguments as JSON.
var served = map[string]func(h *host) agent.Op{}

// op adds an operation with arguments and a result to served, and returns the function that requests it from a Guest.
func op[A, R any](name string, run func(*Node, context.Context, A) (R, error)) func(context.Context, Guest, A) (R,
	error) {
	name = prefix + name
	served[name] = func(h *host) agent.Op {
		return agent.Decoded(func(ctx context.Context, q request[A]) (any, error) {
			n, err := h.get(q.Node)
			if err != nil {
				return nil, err
			}
			return run(n, ctx, q.Args)
		})
	}
	return func(ctx context.Context, g Guest, args A) (r R, err error) {
		err = g.Do(ctx, Call{name, args, &r, func(n *Node) (err error) { r, err = run(n, ctx, args); return err }})
		return r, err
	}
}

func opNoArgs[R any](name string, run func(*Node, context.Context) (R, error)) func(context.Context, Guest) (R, error) {
	f := op(name, func(n *Node, ctx context.Context, _ agent.None) (R, error) { return run(n, ctx) })
	return func(ctx context.Context, g Guest) (R, error) { return f(ctx, g, agent.None{}) }
}

func opNoResult[A any](name string, run func(*Node, context.Context, A) error) func(context.Context, Guest, A) error {
	f := op(name, func(n *Node, ctx context.Context, args A) (none agent.None, err error) {
		return none, run(n, ctx, args)
	})
	return func(ctx context.Context, g Guest, args A) error {
		_, err := f(ctx, g, args)
		return err
	}
}

func opPlain(name string, run func(*Node, context.Context) error) func(context.Context, Guest) error {
	f := opNoResult(name, func(n *Node, ctx context.Context, _ agent.None) error { return run(n, ctx) })
	return func(ctx context.Context, g Guest) error { return f(ctx, g, agent.None{}) }
}
