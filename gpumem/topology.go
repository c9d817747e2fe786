package gpumem

import (
	"fmt"
	"strings"
	"syscall"
)

// PathKind is how a NIC reaches a GPU's memory.
type PathKind uint8

// Kinds of paths (drivers/pci/p2pdma.c: enum pci_p2pdma_map_type).
const (
	PathNone       PathKind = iota // not at all: payload is bounced through host memory
	PathBus                        // below a common switch
	PathHostBridge                 // through a root complex that allows it
)

// String is the kind as reports name it.
func (k PathKind) String() string {
	switch k {
	case PathBus:
		return "bus"
	case PathHostBridge:
		return "host bridge"
	}
	return "none"
}

// Path is the way between two devices.
type Path struct {
	Kind   PathKind
	Reason string // why, for people
}

// P2P reports whether payload may go this way without a bounce.
func (p Path) P2P() bool { return p.Kind != PathNone }

// Topology is a PCIe tree and the policy on it. It is made before use: its methods that change it
// are for one goroutine.
type Topology struct {
	off   bool
	nodes map[string]*node
}

type node struct {
	name   string
	kind   nodeKind
	parent *node // nil: a root complex
	p2p    bool  // root: forwards between its ports; switch: forwards between its ports and not only up
}

type nodeKind uint8

const (
	kindRoot nodeKind = iota
	kindSwitch
	kindDevice
)

// NewTopology returns an empty tree.
func NewTopology() *Topology { return &Topology{nodes: make(map[string]*node)} }

// SetOff forbids every peer-to-peer path (--p2p off).
func (t *Topology) SetOff(off bool) { t.off = off }

// AddRoot adds a root complex; p2p says whether it forwards between its ports (as Linux's whitelist knows).
func (t *Topology) AddRoot(name string, p2p bool) error {
	return t.add(&node{name: name, kind: kindRoot, p2p: p2p}, "")
}

// AddSwitch adds a switch below a root complex or a switch; redirect says that it sends all traffic up (ACS).
func (t *Topology) AddSwitch(name, parent string, redirect bool) error {
	return t.add(&node{name: name, kind: kindSwitch, p2p: !redirect}, parent)
}

// AddDevice adds a NIC or GPU below a root complex or a switch.
func (t *Topology) AddDevice(name, parent string) error {
	return t.add(&node{name: name, kind: kindDevice}, parent)
}

func (t *Topology) add(n *node, parent string) error {
	if n.name == "" || strings.Contains(n.name, "/") {
		return fmt.Errorf("PCIe tree: %q is no name: %w", n.name, syscall.EINVAL)
	}
	if t.nodes[n.name] != nil {
		return fmt.Errorf("PCIe tree: there is a %s already: %w", n.name, syscall.EEXIST)
	}
	if n.kind != kindRoot {
		if n.parent = t.nodes[parent]; n.parent == nil || n.parent.kind == kindDevice {
			return fmt.Errorf("PCIe tree: %s: no root complex or switch %q to put it below: %w", n.name, parent, syscall.ENOENT)
		}
	}
	t.nodes[n.name] = n
	return nil
}

// Path returns the way between two devices, by the rules of drivers/pci/p2pdma.c:calc_map_type_and_dist.
func (t *Topology) Path(a, b string) (Path, error) {
	up, err := t.ancestors(a)
	if err != nil {
		return Path{}, err
	}
	other, err := t.ancestors(b)
	if err != nil {
		return Path{}, err
	}
	if t.off {
		return Path{PathNone, "peer to peer is switched off"}, nil
	}
	for _, n := range up {
		for _, o := range other {
			if n != o {
				continue
			}
			// The lowest common node; but a switch that redirects sends the traffic further up.
			switch {
			case n.kind == kindSwitch && n.p2p:
				return Path{PathBus, "below the switch " + n.name}, nil
			case n.kind == kindRoot && n.p2p:
				return Path{PathHostBridge, "through the root complex " + n.name}, nil
			case n.kind == kindRoot:
				return Path{PathNone, "the root complex " + n.name + " does not forward between its ports"}, nil
			}
		}
	}
	return Path{PathNone, "different root complexes"}, nil
}

// ancestors returns what is above a device, upwards.
func (t *Topology) ancestors(name string) (up []*node, err error) {
	n := t.nodes[name]
	if n == nil || n.kind != kindDevice {
		return nil, fmt.Errorf("PCIe tree: no device %q: %w", name, syscall.ENOENT)
	}
	for n = n.parent; n != nil; n = n.parent {
		up = append(up, n)
	}
	return up, nil
}

// PathName returns where something is: "rc0/sw0/gpu0"; "" if it is not in the tree.
func (t *Topology) PathName(name string) string {
	n := t.nodes[name]
	if n == nil {
		return ""
	}
	place := n.name
	for n = n.parent; n != nil; n = n.parent {
		place = n.name + "/" + place
	}
	return place
}
