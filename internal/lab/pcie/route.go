package pcie

import (
	"fmt"
	"slices"
)

// EdgeKind is the kind of an Edge.
type EdgeKind uint8

// Kinds of edges.
const (
	Up     EdgeKind = iota // the link above a node, in the direction of the socket
	Down                   // the same link, the other way
	Memory                 // a socket's memory
	Across                 // from a socket to another
)

// Edge is one direction of a link of a tree, one direction between two sockets, or the memory of a socket.
type Edge struct {
	Kind EdgeKind
	Node string // the node below the link; for Memory: the socket; for Across: the socket at the start
	To   string // for Across: the socket at the end; else ""
}

// String returns the edge's name: "nic0 up", "nic0 down", "s0 memory", "s0 to s1".
func (e Edge) String() string {
	switch e.Kind {
	case Up:
		return e.Node + " up"
	case Down:
		return e.Node + " down"
	case Memory:
		return e.Node + " memory"
	}
	return e.Node + " to " + e.To
}

// Bytes of a packet besides payload, the most payload of a packet, and the most bytes that a read request asks for:
// Neugebauer et al., "Understanding PCIe performance for end host networking" (SIGCOMM 2018), section 3; with
// 64 bit addresses.
const (
	WriteBytes      = 24 // per memory write
	RequestBytes    = 24 // per memory read request
	CompletionBytes = 20 // per completion with data
	MaxPayload      = 256
	MaxReadRequest  = 512
)

// Load is how many bytes an edge carries per byte of data that is written or read.
type Load struct {
	Edge
	PerByte float64
}

// Route returns the edges that data takes between two places: endpoints, or sockets, which stand for their
// memories. It panics if a name is neither, or if two endpoints have no path.
func (t *Tree) Route(from, to string) (edges []Edge) {
	x, y := t.place(from), t.place(to)
	if x.Kind == Endpoint && y.Kind == Endpoint {
		switch p := t.Path(from, to); p.Kind {
		case NoPath:
			panic(fmt.Sprintf("pcie: no path from %q to %q", from, to))
		case Bus:
			common := meet(x, y)
			return append(climb(x, common), descend(common, y)...)
		}
	}
	if x.Kind == Socket {
		edges = append(edges, Edge{Kind: Memory, Node: x.Name})
	}
	p, q := x.socket(), y.socket()
	edges = append(edges, climb(x, p)...)
	if p != q {
		edges = append(edges, Edge{Kind: Across, Node: p.Name, To: q.Name})
	}
	edges = append(edges, descend(q, y)...)
	if y.Kind == Socket {
		edges = append(edges, Edge{Kind: Memory, Node: y.Name})
	}
	return edges
}

func (t *Tree) place(name string) *node {
	n := t.byName[name]
	if n == nil || n.Kind == Switch {
		panic(fmt.Sprintf("pcie: %q is neither an endpoint nor a socket", name))
	}
	return n
}

// climb returns the edges from a node up to top.
func climb(n, top *node) (edges []Edge) {
	for ; n != top; n = n.above {
		edges = append(edges, Edge{Kind: Up, Node: n.Name})
	}
	return edges
}

func descend(top, n *node) (edges []Edge) {
	for _, up := range slices.Backward(climb(n, top)) {
		edges = append(edges, Edge{Kind: Down, Node: up.Node})
	}
	return edges
}

// Write returns the loads for data written from one place to another, in posted writes of MaxPayload bytes.
func (t *Tree) Write(from, to string) (loads []Load) {
	return carry(nil, t.Route(from, to), 1+float64(WriteBytes)/MaxPayload, 1)
}

// Read returns the loads for data that reader reads from another place: completions of MaxPayload bytes go to the
// reader, requests for MaxReadRequest bytes the other way.
func (t *Tree) Read(reader, from string) (loads []Load) {
	loads = carry(nil, t.Route(from, reader), 1+float64(CompletionBytes)/MaxPayload, 1)
	return carry(loads, t.Route(reader, from), float64(RequestBytes)/MaxReadRequest, 0)
}

// carry appends edges to loads, except edges with load 0: memory is the load of a socket's memory, link the load of
// another edge.
func carry(loads []Load, edges []Edge, link, memory float64) []Load {
	for _, e := range edges {
		n := link
		if e.Kind == Memory {
			n = memory
		}
		if n > 0 {
			loads = append(loads, Load{e, n})
		}
	}
	return loads
}
