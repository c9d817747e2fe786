package transfer

import (
	"context"
	"encoding/json"

	"vnic.dev/vnic/internal/agent"
)

// The table of operations. Each row is both ends of one: Ops serves it in a guest under its name, and a call of the
// variable asks a Guest for it. Remote.Setup comes before them, and Remote.Close after.
var (
	Prepare    = does("prepare", (*Node).Prepare)
	Listen     = does0("listen", (*Node).Listen)
	Connect    = does0("connect", (*Node).Connect)
	Accept     = does0("accept", (*Node).Accept)
	Receive    = gives0("receive", (*Node).Receive)
	Send       = gives0("send", (*Node).Send)
	state      = gives0("state", func(n *Node, ctx context.Context) (string, error) { return n.State(ctx), nil })
	Holders    = gives0("holders", (*Node).Holders)
	LateTokens = does("late", (*Node).LateTokens)
	Finish     = does0("finish", (*Node).Finish)
	CPUTime    = gives0("cpu-time", (*Node).CPUTime)

	Join       = does("join", (*Node).Join)
	Collective = gives("collective", (*Node).Collective)
	Leave      = does0("leave", (*Node).Leave)

	OpenStorage  = gives("open-storage", (*Node).OpenStorage)
	DoIO         = gives("io", (*Node).DoIO)
	CloseStorage = does0("close-storage", (*Node).CloseStorage)

	OpenSource  = gives("open-source", (*Node).OpenSource)
	Load        = gives("load", (*Node).Load)
	CloseSource = does0("close-source", (*Node).CloseSource)

	OpenRDMA    = gives("open-rdma", (*Node).OpenRDMA)
	ConnectRDMA = gives0("connect-rdma", (*Node).ConnectRDMA)
	MoveRDMA    = gives("move-rdma", (*Node).MoveRDMA)
	StageRDMA   = does("stage-rdma", (*Node).StageRDMA)
	CloseRDMA   = does0("close-rdma", (*Node).CloseRDMA)

	StartStorm = does("start-storm", (*Node).StartStorm)
	EndStorm   = does0("end-storm", (*Node).EndStorm)
	ODP        = gives0("odp", (*Node).ODP)
	DigestODP  = gives0("digest-odp", (*Node).DigestODP)
	ReadODP    = gives("read-odp", (*Node).ReadODP)
	KillOwner  = gives0("kill-owner", (*Node).KillOwner)
	BreakPage  = does("break-page", (*Node).BreakPage)
	Complaints = gives0("complaints", (*Node).Complaints)
)

const (
	prefix  = "transfer."
	opSetup = prefix + "setup"
	opClose = prefix + "close"
)

// Guest is where a Node is: the Node itself, in this process, or a Remote, behind a guest's agent.
type Guest interface {
	// Do does an operation. Callers call the rows of the table instead.
	Do(ctx context.Context, c Call) error
}

// Call is an operation with its arguments.
type Call struct {
	Name   string
	args   any
	result any // a pointer
	run    func(n *Node) error
}

// Do does an operation of this Node.
func (n *Node) Do(_ context.Context, c Call) error { return c.run(n) }

// Remote is a Node of a guest, behind its agent.
type Remote struct {
	Agent *agent.Client
	Node  int // its number: 0 of the only one
}

// request is an operation's arguments on their way to a guest, which may have several Nodes. All are set up before the
// first transfer; operations of different Nodes go on at the same time.
type request[A any] struct {
	Node int `json:"node,omitempty"`
	Args A   `json:"args"`
}

// Do asks the guest for the operation.
func (r Remote) Do(ctx context.Context, c Call) error {
	return r.Agent.Call(ctx, c.Name, request[any]{r.Node, c.args}, c.result)
}

// Setup sets a NIC of the guest's and its stack up.
func (r Remote) Setup(ctx context.Context, s SetupArgs) (res SetupResult, err error) {
	err = r.Do(ctx, Call{Name: opSetup, args: s, result: &res})
	return res, err
}

// Close is Node.Close. The guest's NIC can be set up again after.
func (r Remote) Close(ctx context.Context) error {
	return r.Do(ctx, Call{Name: opClose, args: agent.None{}})
}

// State describes the TCP state of a Guest's connection, or says why that is not known.
func State(ctx context.Context, g Guest) string {
	s, err := state(ctx, g)
	if err != nil {
		return "unknown: " + err.Error()
	}
	return s
}

// served are the operations of the table by name, as the agent decodes their arguments.
var served = map[string]func(ctx context.Context, h *host, raw json.RawMessage) (any, error){}

// gives is an operation with arguments and a result.
func gives[A, R any](name string, run func(*Node, context.Context, A) (R, error)) func(context.Context, Guest, A) (R,
	error) {
	name = prefix + name
	served[name] = func(ctx context.Context, h *host, raw json.RawMessage) (any, error) {
		q, err := decode[A](raw)
		if err != nil {
			return nil, err
		}
		n, err := h.get(q.Node)
		if err != nil {
			return nil, err
		}
		return run(n, ctx, q.Args)
	}
	return func(ctx context.Context, g Guest, args A) (r R, err error) {
		err = g.Do(ctx, Call{name, args, &r, func(n *Node) (err error) { r, err = run(n, ctx, args); return err }})
		return r, err
	}
}

// gives0 is an operation with a result alone.
func gives0[R any](name string, run func(*Node, context.Context) (R, error)) func(context.Context, Guest) (R, error) {
	f := gives(name, func(n *Node, ctx context.Context, _ agent.None) (R, error) { return run(n, ctx) })
	return func(ctx context.Context, g Guest) (R, error) { return f(ctx, g, agent.None{}) }
}

// does is an operation with arguments alone.
func does[A any](name string, run func(*Node, context.Context, A) error) func(context.Context, Guest, A) error {
	f := gives(name, func(n *Node, ctx context.Context, args A) (none agent.None, err error) {
		return none, run(n, ctx, args)
	})
	return func(ctx context.Context, g Guest, args A) error {
		_, err := f(ctx, g, args)
		return err
	}
}

// does0 is an operation without arguments and result.
func does0(name string, run func(*Node, context.Context) error) func(context.Context, Guest) error {
	f := does(name, func(n *Node, ctx context.Context, _ agent.None) error { return run(n, ctx) })
	return func(ctx context.Context, g Guest) error { return f(ctx, g, agent.None{}) }
}

// decode decodes a request; nothing is the zero request.
func decode[A any](raw json.RawMessage) (q request[A], err error) {
	if len(raw) > 0 {
		err = json.Unmarshal(raw, &q)
	}
	return q, err
}
