package pcie

import (
	"fmt"
	"strings"
)

// PathKind is how requests of one endpoint reach the memory of another.
type PathKind uint8

// Kinds of paths (drivers/pci/p2pdma.c: enum pci_p2pdma_map_type).
const (
	NoPath     PathKind = iota // not at all: payload is bounced through host memory (PCI_P2PDMA_MAP_NOT_SUPPORTED)
	Bus                        // below a common switch (PCI_P2PDMA_MAP_BUS_ADDR)
	HostBridge                 // through host bridges that forward it (PCI_P2PDMA_MAP_THRU_HOST_BRIDGE)
)

// String is the kind as reports name it.
func (k PathKind) String() string {
	switch k {
	case Bus:
		return "bus"
	case HostBridge:
		return "host bridge"
	}
	return "none"
}

// Distance is what is between two endpoints, whether or not requests may go that way.
type Distance uint8

// Distances, as nvidia-smi topo -m has them (NVML: nvmlGpuTopologyLevel_t).
const (
	Same Distance = iota // an endpoint and itself
	PIX                  // one switch
	PXB                  // several switches, and no host bridge
	PHB                  // a host bridge
	NODE                 // two host bridges of one NUMA node
	SYS                  // the link between NUMA nodes
)

var distances = []string{Same: "X", PIX: "PIX", PXB: "PXB", PHB: "PHB", NODE: "NODE", SYS: "SYS"}

// String is the word for it.
func (d Distance) String() string { return distances[d] }

// Path is the way between two endpoints.
type Path struct {
	Kind     PathKind
	Distance Distance
	Reason   string // of Kind, for people
}

// P2P reports whether payload may go this way without a bounce.
func (p Path) P2P() bool { return p.Kind != NoPath }

// Off is a path as it is where peer to peer is switched off.
func (p Path) Off() Path { return Path{NoPath, p.Distance, "peer to peer is switched off"} }

// Path gives the way between two endpoints by Linux's rule. Where they have a common switch, and no port on either way
// to it redirects, requests stay below it. Else they go to the host bridge, and host bridges forward them or do not. A
// name that is no endpoint's is the caller's error, and panics.
func (t *Tree) Path(a, b string) Path {
	x, y := t.endpoint(a), t.endpoint(b)
	common := meet(x, y)
	distance := between(x, y, common)
	redirected := redirects(x, y, common)
	if common != nil && common.Kind != Socket && len(redirected) == 0 {
		if common.Kind == Endpoint {
			return Path{Bus, distance, "the same device"}
		}
		return Path{Bus, distance, "below the switch " + common.Name}
	}
	p, q := x.socket(), y.socket()
	reason := ""
	if len(redirected) > 0 && common != nil && common.Kind != Socket {
		reason = fmt.Sprintf("ACS redirects at the port above %s, and ", strings.Join(redirected, " and "))
	}
	switch {
	case p == q && p.Routing != NoRouting:
		return Path{HostBridge, distance, reason + "the host bridge of " + p.Name + " forwards"}
	case p == q:
		return Path{NoPath, distance, reason + "the host bridge of " + p.Name + " forwards nothing between its ports"}
	case p.Routing == AnyBridge && q.Routing == AnyBridge:
		return Path{HostBridge, distance, fmt.Sprintf("the host bridges of %s and %s forward", p.Name, q.Name)}
	}
	if p.Routing == AnyBridge {
		p, q = q, p
	}
	return Path{NoPath, distance,
		fmt.Sprintf("the host bridge of %s forwards nothing from or to that of %s", p.Name, q.Name)}
}

func (t *Tree) endpoint(name string) *node {
	n := t.byName[name]
	if n == nil || n.Kind != Endpoint {
		panic(fmt.Sprintf("pcie: %q is no endpoint", name))
	}
	return n
}

// meet is the lowest node that both are or are below; nil: they are of different sockets.
func meet(x, y *node) *node {
	for x != y {
		if x.depth < y.depth {
			x, y = y, x
		}
		if x = x.above; x == nil {
			return nil
		}
	}
	return x
}

func between(x, y, common *node) Distance {
	switch {
	case common == nil:
		if numa := x.socket().NUMA; numa >= 0 && numa == y.socket().NUMA {
			return NODE
		}
		return SYS
	case common.Kind == Endpoint:
		return Same
	case common.Kind == Socket:
		return PHB
	case x.above == common && y.above == common:
		return PIX
	}
	return PXB
}

// redirects names what is below ports that redirect, on the ways from both ends to the common node.
func redirects(x, y, common *node) (list []string) {
	for _, n := range []*node{x, y} {
		for ; n != common && n.above != nil; n = n.above {
			if n.Redirect {
				list = append(list, n.Name)
			}
		}
	}
	return list
}
