package pcie

import (
	"fmt"
	"strings"
)

// PathKind is how, and whether, an endpoint's requests reach another endpoint's memory.
type PathKind uint8

// Kinds of paths (Linux's enum pci_p2pdma_map_type).
const (
	NoPath     PathKind = iota // PCI_P2PDMA_MAP_NOT_SUPPORTED
	Bus                        // below a common switch, or one device (PCI_P2PDMA_MAP_BUS_ADDR)
	HostBridge                 // through one or two host bridges that forward (PCI_P2PDMA_MAP_THRU_HOST_BRIDGE)
)

// String returns the kind's name: "bus", "host bridge" or "none".
func (k PathKind) String() string {
	switch k {
	case Bus:
		return "bus"
	case HostBridge:
		return "host bridge"
	}
	return "none"
}

// Distance is what lies between two endpoints, whether or not requests may pass.
type Distance uint8

// Distances over PCIe, with the names that nvidia-smi topo -m shows (NVML: nvmlGpuTopologyLevel_t).
const (
	Same Distance = iota // an endpoint and itself
	PIX                  // one switch
	PXB                  // several switches, and no host bridge
	PHB                  // a host bridge
	NODE                 // two host bridges of one NUMA node
	SYS                  // two host bridges that are not known to be of one NUMA node
)

var distances = []string{Same: "X", PIX: "PIX", PXB: "PXB", PHB: "PHB", NODE: "NODE", SYS: "SYS"}

// String returns the name of the distance.
func (d Distance) String() string { return distances[d] }

// Path is the path between two endpoints.
type Path struct {
	Kind     PathKind
	Distance Distance
	Reason   string // why it has this Kind
}

// P2P reports whether data may go from one endpoint to the other's memory without a copy in RAM.
func (p Path) P2P() bool { return p.Kind != NoPath }

// Off returns the path with peer to peer switched off: its kind is NoPath.
func (p Path) Off() Path { return Path{NoPath, p.Distance, "peer to peer is switched off"} }

// Path returns the path between two endpoints by Linux's rule. Its kind is Bus for one device, and below a common
// switch if no port between the endpoints and that switch redirects. Otherwise it is HostBridge if the host bridges
// forward, else NoPath. Path panics if a name is not an endpoint's.
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

// meet returns the lowest node that is above both nodes or is one of them; nil: none.
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

// redirects returns the names of the nodes below redirecting ports, on the ways from x and from y up to common
// (nil: up to their sockets).
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
