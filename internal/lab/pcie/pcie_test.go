package pcie

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"

	"vnic.dev/vnic/internal/testkit"
)

func mustTree(t testing.TB, nodes ...Node) *Tree { return testkit.Must(New(nodes))(t) }

func socket(name string, r Routing, numa int) Node {
	return Node{Name: name, Kind: Socket, Routing: r, NUMA: numa}
}

func below(kind Kind, name, above string, redirect bool) Node {
	return Node{Name: name, Kind: kind, Below: above, Redirect: redirect}
}

// Path follows Linux's rule (drivers/pci/p2pdma.c, calc_map_type_and_dist).
func TestPathsFollowLinux(t *testing.T) {
	for _, c := range []struct {
		name     string
		routing  [2]Routing // of s0 and s1
		nodes    []Node
		want     PathKind
		distance Distance
		reason   string
	}{
		{"one switch", [2]Routing{}, []Node{below(Switch, "sw", "s0", false), below(Endpoint, "nic", "sw", false),
			below(Endpoint, "gpu", "sw", false)}, Bus, PIX, "below the switch sw"},
		{"the common switch's own port does not matter", [2]Routing{}, []Node{below(Switch, "sw", "s0", true),
			below(Endpoint, "nic", "sw", false), below(Endpoint, "gpu", "sw", false)}, Bus, PIX, "below the switch sw"},
		{"two switches", [2]Routing{}, []Node{below(Switch, "up", "s0", false), below(Switch, "a", "up", false),
			below(Switch, "b", "up", false), below(Endpoint, "nic", "a", false), below(Endpoint, "gpu", "b", false)},
			Bus, PXB, "below the switch up"},
		{"a switch below a switch", [2]Routing{}, []Node{below(Switch, "up", "s0", false), below(Switch, "a", "up", false),
			below(Endpoint, "nic", "up", false), below(Endpoint, "gpu", "a", false)}, Bus, PXB, "below the switch up"},
		{"GPU's port redirects", [2]Routing{}, []Node{below(Switch, "sw", "s0", false), below(Endpoint, "nic", "sw", false),
			below(Endpoint, "gpu", "sw", true)}, NoPath, PIX,
			"ACS redirects at the port above gpu, and the host bridge of s0 forwards nothing between its ports"},
		// The port sends the NIC's request past the switch "up" to the host bridge, which does not forward it.
		{"a port redirects below another switch", [2]Routing{}, []Node{below(Switch, "up", "s0", false),
			below(Switch, "sw", "up", false), below(Endpoint, "nic", "sw", true), below(Endpoint, "gpu", "sw", false)},
			NoPath, PIX, "ACS redirects at the port above nic"},
		{"a port between redirects", [2]Routing{}, []Node{below(Switch, "up", "s0", false), below(Switch, "a", "up", true),
			below(Endpoint, "nic", "a", false), below(Endpoint, "gpu", "up", false)}, NoPath, PXB,
			"ACS redirects at the port above a"},
		{"both redirect, and the host bridge forwards", [2]Routing{SameBridge}, []Node{below(Switch, "sw", "s0", false),
			below(Endpoint, "nic", "sw", true), below(Endpoint, "gpu", "sw", true)}, HostBridge, PIX,
			"ACS redirects at the port above nic and gpu, and the host bridge of s0 forwards"},
		{"root ports", [2]Routing{}, []Node{below(Endpoint, "nic", "s0", false), below(Endpoint, "gpu", "s0", false)},
			NoPath, PHB, "the host bridge of s0 forwards nothing between its ports"},
		{"root ports of one that forwards", [2]Routing{SameBridge}, []Node{below(Endpoint, "nic", "s0", false),
			below(Endpoint, "gpu", "s0", false)}, HostBridge, PHB, "the host bridge of s0 forwards"},
		{"redirecting root ports of one that forwards", [2]Routing{AnyBridge}, []Node{below(Endpoint, "nic", "s0", true),
			below(Endpoint, "gpu", "s0", true)}, HostBridge, PHB, "the host bridge of s0 forwards"},
		{"two sockets", [2]Routing{SameBridge, SameBridge}, []Node{below(Endpoint, "nic", "s0", false),
			below(Endpoint, "gpu", "s1", false)}, NoPath, SYS, "the host bridge of s0 forwards nothing from or to that of s1"},
		{"two sockets, one forwards", [2]Routing{AnyBridge, SameBridge}, []Node{below(Endpoint, "nic", "s0", false),
			below(Endpoint, "gpu", "s1", false)}, NoPath, SYS, "the host bridge of s1 forwards nothing from or to that of s0"},
		{"two sockets that forward", [2]Routing{AnyBridge, AnyBridge}, []Node{below(Endpoint, "nic", "s0", false),
			below(Endpoint, "gpu", "s1", false)}, HostBridge, SYS, "the host bridges of s0 and s1 forward"},
	} {
		t.Run(c.name, func(t *testing.T) {
			tree := mustTree(t, append([]Node{socket("s0", c.routing[0], 0), socket("s1", c.routing[1], 1)}, c.nodes...)...)
			p := tree.Path("nic", "gpu")
			if p.Kind != c.want || p.Distance != c.distance || !strings.HasPrefix(p.Reason, c.reason) {
				t.Errorf("%+v", p)
			}
			back := tree.Path("gpu", "nic")
			if back.Kind != p.Kind || back.Distance != p.Distance {
				t.Errorf("back it is %+v, there %+v", back, p)
			}
			if off := p.Off(); off.P2P() || off.Distance != p.Distance {
				t.Errorf("%+v", off)
			}
			testkit.Equal(t, "to itself", tree.Path("nic", "nic").Distance, Same)
		})
	}
}

func TestKindsOfPathsHaveNames(t *testing.T) {
	for kind, want := range map[PathKind]string{NoPath: "none", Bus: "bus", HostBridge: "host bridge"} {
		testkit.Equal(t, "name", kind.String(), want)
	}
}

func TestHostBridgesOfOneNode(t *testing.T) {
	for numa, want := range map[int]Distance{3: NODE, -1: SYS} {
		tree := mustTree(t, socket("a", 0, numa), socket("b", 0, numa), below(Endpoint, "nic", "a", false),
			below(Endpoint, "gpu", "b", false))
		testkit.Equal(t, "distance", tree.Path("nic", "gpu").Distance, want)
	}
}

func TestWhatIsNoTree(t *testing.T) {
	long := []Node{socket("s", 0, 0), below(Switch, "sw0", "s", false)}
	for i := range MaxDepth - 1 {
		long = append(long, below(Switch, fmt.Sprint("sw", i+1), fmt.Sprint("sw", i), false))
	}
	deepest := fmt.Sprint("sw", MaxDepth-1)
	mustTree(t, append(long, below(Endpoint, "nic", deepest, false))...)
	for want, nodes := range map[string][]Node{
		"is no name":                        {socket("a/b", 0, 0)},
		"there are two s":                   {socket("s", 0, 0), socket("s", 0, 0)},
		"a socket is below nothing":         {socket("s", 0, 0), {Name: "t", Below: "s"}},
		"all else is below a socket":        {{Name: "nic", Kind: Endpoint}},
		"nic is below sw, which is neither": {below(Endpoint, "nic", "sw", false)},
		"gpu is below nic, which is neither": {socket("s", 0, 0), below(Endpoint, "nic", "s", false),
			below(Endpoint, "gpu", "nic", false)},
		"a is below itself": {below(Switch, "a", "b", false), below(Switch, "b", "a", false)},
		"is below itself":   {below(Switch, "a", "a", false)},
		"is below more than 8 switches": append(long, below(Switch, "one", deepest, false),
			below(Endpoint, "nic", "one", false)),
		"4097 nodes: 4096 at most": make([]Node, MaxNodes+1),
	} {
		_, err := New(nodes)
		bad := (*NodeError)(nil)
		if !errors.As(err, &bad) || !strings.Contains(err.Error(), want) || bad.Index > len(nodes) {
			t.Errorf("%v, not that %s", err, want)
		}
	}
}

func TestTreesThatFit(t *testing.T) {
	sockets := func(n int) (nodes []Node) {
		for i := range n {
			nodes = append(nodes, socket(fmt.Sprint("s", i), 0, 0))
		}
		return nodes
	}
	below32 := func(nodes []Node, above string, n int) []Node {
		for i := range n {
			nodes = append(nodes, below(Switch, fmt.Sprint(above, "x", i), above, false))
		}
		return nodes
	}
	testkit.OK(t, mustTree(t, sockets(8)...).Fits())
	testkit.ErrorSays(t, mustTree(t, sockets(9)...).Fits(), "s8: more than 8 sockets")
	nodes := below32(sockets(4), "s0", 32)
	testkit.OK(t, mustTree(t, nodes...).Fits())
	testkit.ErrorSays(t, mustTree(t, below32(sockets(1), "s0", 33)...).Fits(), "s0x32: more than 32 below s0")
	nodes = below32(below32(nodes, "s1", 32), "s2", 32)
	testkit.OK(t, mustTree(t, below32(nodes, "s3", 22)...).Fits())
	testkit.ErrorSays(t, mustTree(t, below32(nodes, "s3", 23)...).Fits(), "needs 242 bus numbers", "240 at most")
}

func TestPlaces(t *testing.T) {
	tree := mustTree(t, below(Endpoint, "gpu", "sw", false), below(Switch, "sw", "s0", false), socket("s0", 0, 0))
	testkit.Equal(t, "place", tree.Place("gpu"), "s0/sw/gpu")
	testkit.Equal(t, "place of nothing", tree.Place("other"), "")
	testkit.Equal(t, "socket", tree.SocketOf("gpu"), "s0")
	testkit.Equal(t, "buses", tree.Buses(), 4)
	c, sockets := tree.Children("sw"), tree.Children("")
	if len(c) != 1 || c[0].Name != "gpu" || len(sockets) != 1 || len(tree.Nodes()) != 3 {
		t.Errorf("below sw is %v", c)
	}
}

// The rates of links follow the PCI Express Base Specification 6.0, section 4.2.
func TestLinks(t *testing.T) {
	for s, want := range map[string]float64{"gen1x1": 0.25, "gen3x16": 15.75, "gen4x16": 31.51, "gen5x16": 63.02,
		"gen6x16": 118} {
		l := testkit.Must(ParseLink(s))(t)
		if got := l.Rate() / 1e9; math.Abs(got-want) > 0.005 {
			t.Errorf("%s: %.3f GB/s", s, got)
		}
		testkit.Equal(t, "link", l.String(), s)
		var again Link
		testkit.OK(t, again.UnmarshalText(testkit.Must(l.MarshalText())(t)))
		testkit.Equal(t, "link", again, l)
	}
	for _, s := range []string{"", "gen0x1", "gen7x1", "gen4x3", "gen4", "x16", "gen4x160", "Gen4x16", " gen4x16"} {
		if l, err := ParseLink(s); err == nil || l.Known() {
			t.Errorf("%q is %v", s, l)
		}
	}
	for _, r := range []Routing{NoRouting, SameBridge, AnyBridge} {
		var again Routing
		testkit.OK(t, again.UnmarshalText([]byte(r.String())))
		testkit.Equal(t, "routing", again, r)
	}
	testkit.ErrorSays(t, new(Routing).UnmarshalText([]byte("some")), "none, same-bridge or any")
}

// New returns an error, or a tree whose paths can be computed.
func FuzzTree(f *testing.F) {
	f.Add([]byte{0, 0, 0, 1, 0, 0, 2, 1, 1, 2, 1, 0})
	f.Add([]byte{1, 1, 0, 1, 0, 0})
	f.Fuzz(func(t *testing.T, b []byte) {
		var nodes []Node
		var ends []string
		for ; len(b) >= 3; b = b[3:] {
			n := Node{Name: fmt.Sprint("n", len(nodes)), Kind: Kind(b[0] % 3), Redirect: b[2]&1 != 0,
				Routing: Routing(b[2]>>1) % 3}
			if n.Kind != Socket {
				n.Below = fmt.Sprint("n", b[1])
			}
			if n.Kind == Endpoint {
				ends = append(ends, n.Name)
			}
			nodes = append(nodes, n)
		}
		tree, err := New(nodes)
		if err != nil {
			return
		}
		for _, x := range ends {
			for _, y := range ends[:min(len(ends), 8)] {
				p, q := tree.Path(x, y), tree.Path(y, x)
				if p.Kind != q.Kind || p.Distance != q.Distance || p.Kind == Bus && p.Distance > PXB {
					t.Errorf("%s to %s: %+v, back %+v", x, y, p, q)
				}
			}
		}
	})
}
