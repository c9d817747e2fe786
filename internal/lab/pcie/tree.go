package pcie

import (
	"fmt"
	"slices"
	"strings"
)

// MaxDepth is the most switches above a node, MaxNodes the most nodes of a tree.
const (
	MaxDepth = 8
	MaxNodes = 4096
)

// Limits of an emulated machine: PCI buses (the tree may not use the first OwnBuses), sockets, and ports of a socket
// or a switch.
const (
	MaxBuses   = 256
	OwnBuses   = 16
	MaxSockets = 8
	MaxPorts   = 32
)

// Kind is the kind of a node.
type Kind uint8

// Kinds of nodes.
const (
	Socket Kind = iota // a host bridge, with memory
	Switch
	Endpoint // a device without ports
)

// Routing is which requests from one endpoint to another a host bridge forwards.
type Routing uint8

// Kinds of Routing (drivers/pci/p2pdma.c: pci_p2pdma_whitelist, cpu_supports_p2pdma).
const (
	NoRouting  Routing = iota // it forwards nothing
	SameBridge                // between its own ports (REQ_SAME_HOST_BRIDGE)
	AnyBridge                 // also from and to other host bridges with AnyBridge
)

var routings = []string{NoRouting: "none", SameBridge: "same-bridge", AnyBridge: "any"}

// String returns the kind's name in lab files.
func (r Routing) String() string { return routings[r] }

// MarshalText returns String's result.
func (r Routing) MarshalText() ([]byte, error) { return []byte(r.String()), nil }

// UnmarshalText parses String's result.
func (r *Routing) UnmarshalText(b []byte) error {
	i := slices.Index(routings, string(b))
	if i < 0 {
		return fmt.Errorf("%q: none, same-bridge or any", b)
	}
	*r = Routing(i)
	return nil
}

// Node is a node of a tree.
type Node struct {
	Name  string
	Kind  Kind
	Below string // name of the node above; "" for a socket

	Link Link // to the node above
	// The port above this node redirects peer-to-peer requests or completions upstream: Access Control Services
	// (PCI Express Base Specification 6.0, section 6.12.1.1).
	Redirect bool

	Routing Routing // of a socket
	NUMA    int     // of a socket; -1: none
}

// Tree is a PCIe tree.
type Tree struct {
	nodes  []Node
	byName map[string]*node
}

type node struct {
	Node
	above *node // nil for a socket
	depth int
}

// NodeError is an error about a node.
type NodeError struct {
	Index int // in New's argument; 0 if Fits finds too few bus numbers
	Text  string
}

func (e *NodeError) Error() string { return e.Text }

// New makes a tree from nodes in any order. An error is a *NodeError.
func New(nodes []Node) (*Tree, error) {
	t := &Tree{nodes: slices.Clone(nodes), byName: make(map[string]*node, len(nodes))}
	if len(nodes) > MaxNodes {
		return nil, &NodeError{MaxNodes, fmt.Sprintf("%d nodes: %d at most", len(nodes), MaxNodes)}
	}
	for i, n := range nodes {
		switch {
		case n.Name == "" || strings.ContainsAny(n.Name, "/ "):
			return nil, &NodeError{i, fmt.Sprintf("%q is no name", n.Name)}
		case t.byName[n.Name] != nil:
			return nil, &NodeError{i, fmt.Sprintf("there are two %s", n.Name)}
		}
		t.byName[n.Name] = &node{Node: n}
	}
	for i, n := range nodes {
		if (n.Kind == Socket) != (n.Below == "") {
			return nil, &NodeError{i, n.Name + ": a socket is below nothing, all else is below a socket or a switch"}
		}
		if n.Kind == Socket {
			continue
		}
		above := t.byName[n.Below]
		if above == nil || above.Kind == Endpoint {
			return nil, &NodeError{i, fmt.Sprintf("%s is below %s, which is neither a socket nor a switch", n.Name,
				n.Below)}
		}
		t.byName[n.Name].above = above
	}
	for i, n := range nodes {
		if text := t.settle(t.byName[n.Name]); text != "" {
			return nil, &NodeError{i, text}
		}
	}
	return t, nil
}

// settle sets a node's depth, and returns what is wrong above it.
func (t *Tree) settle(n *node) string {
	for up := n.above; up != nil && n.depth <= len(t.nodes); up = up.above {
		n.depth++
	}
	switch {
	case n.depth > len(t.nodes):
		return n.Name + " is below itself"
	case n.depth > MaxDepth+1:
		return fmt.Sprintf("%s is below more than %d switches", n.Name, MaxDepth)
	}
	return ""
}

// Nodes returns the nodes in New's order.
func (t *Tree) Nodes() []Node { return slices.Clone(t.nodes) }

// Children returns the nodes directly below a node; for "", the sockets.
func (t *Tree) Children(name string) (list []Node) {
	for _, n := range t.nodes {
		if n.Below == name {
			list = append(list, n)
		}
	}
	return list
}

// Buses returns how many PCI bus numbers the tree needs.
func (t *Tree) Buses() int {
	n := len(t.nodes)
	for _, x := range t.nodes {
		if x.Kind == Switch {
			n++
		}
	}
	return n
}

// Fits returns a *NodeError if an emulated machine has no room for the tree.
func (t *Tree) Fits() error {
	ports := make(map[string]int)
	for i, n := range t.nodes {
		most, what := MaxPorts, "below "+n.Below
		if n.Kind == Socket {
			most, what = MaxSockets, "sockets"
		}
		if ports[n.Below]++; ports[n.Below] > most {
			return &NodeError{i, fmt.Sprintf("%s: more than %d %s", n.Name, most, what)}
		}
	}
	if n := t.Buses(); n > MaxBuses-OwnBuses {
		return &NodeError{0, fmt.Sprintf("a PCIe tree that needs %d bus numbers, one below each port and two for a "+
			"switch: %d at most", n, MaxBuses-OwnBuses)}
	}
	return nil
}

// Place returns the path of a node, as "s0/sw0/gpu0"; "": not in the tree.
func (t *Tree) Place(name string) string {
	n := t.byName[name]
	if n == nil {
		return ""
	}
	place := n.Name
	for n = n.above; n != nil; n = n.above {
		place = n.Name + "/" + place
	}
	return place
}

// SocketOf returns the name of the socket above a node, or of the node if it is a socket; "": not in the tree.
func (t *Tree) SocketOf(name string) string {
	n := t.byName[name]
	if n == nil {
		return ""
	}
	return n.socket().Name
}

func (n *node) socket() *node {
	for n.above != nil {
		n = n.above
	}
	return n
}
