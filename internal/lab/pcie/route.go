package pcie

import "fmt"

// EdgeKind is what an Edge is.
type EdgeKind uint8

// Kinds of edges.
const (
	Up     EdgeKind = iota // the link above a node, towards the socket
	Down                   // the same link, the other way
	Memory                 // a socket's memory
	Across                 // from a socket to another one
)

// Edge is one direction of a link of a tree, or the memory of a socket.
type Edge struct {
	Kind EdgeKind
	Node string // below the link; of Memory and Across the socket
	To   string // of Across: the other socket
}

// String is the edge as reports name it: "nic0 up", "s0 memory", "s0 to s1".
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

// Bytes of a transaction layer packet beyond its payload, with what framing and the data link layer add, and the
// longest ones: Neugebauer et al., "Understanding PCIe performance for end host networking" (SIGCOMM 2018), section
// 3; 64 bit addresses.
const (
	WriteBytes      = 24 // of a memory write
	RequestBytes    = 24 // of a memory read: all of it
	CompletionBytes = 20 // of a completion with data
	MaxPayload      = 256
	MaxReadRequest  = 512
)

// Load is what an edge carries of each byte that is moved.
type Load struct {
	Edge
	PerByte float64
}

// Route gives the edges that data takes from one place to another: places are endpoints, and sockets for their memory.
// Between endpoints without a path to each other there is none: the caller goes by a memory.
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

// place is a socket or an endpoint.
func (t *Tree) place(name string) *node {
	n := t.byName[name]
	if n == nil || n.Kind == Switch {
		panic(fmt.Sprintf("pcie: %q is no endpoint and no socket", name))
	}
	return n
}

// climb is the way from a node to one above it, descend the way back.
func climb(n, top *node) (edges []Edge) {
	for ; n != top; n = n.above {
		edges = append(edges, Edge{Kind: Up, Node: n.Name})
	}
	return edges
}

func descend(top, n *node) (edges []Edge) {
	up := climb(n, top)
	for i := len(up) - 1; i >= 0; i-- {
		edges = append(edges, Edge{Kind: Down, Node: up[i].Node})
	}
	return edges
}

// Write gives what edges carry as data is written from one place to another, for each byte: posted writes of MaxPayload
// bytes.
func (t *Tree) Write(from, to string) (loads []Load) {
	return carry(nil, t.Route(from, to), 1+float64(WriteBytes)/MaxPayload, 1)
}

// Read gives what edges carry as a reader reads from another place, for each byte: completions of MaxPayload bytes one
// way, requests for MaxReadRequest the other.
func (t *Tree) Read(reader, from string) (loads []Load) {
	loads = carry(nil, t.Route(from, reader), 1+float64(CompletionBytes)/MaxPayload, 1)
	return carry(loads, t.Route(reader, from), float64(RequestBytes)/MaxReadRequest, 0)
}

// carry adds edges, with what a link carries, and a memory.
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
