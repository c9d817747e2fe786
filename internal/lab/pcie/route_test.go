package pcie

import (
	"fmt"
	"math"
	"strings"
	"testing"

	"vnic.dev/vnic/internal/testkit"
)

// routes makes a tree of two sockets.
func routes(t *testing.T, r Routing) *Tree {
	return testkit.Must(New([]Node{{Name: "s0", Kind: Socket, Routing: r}, {Name: "s1", Kind: Socket, Routing: r, NUMA: 1},
		{Name: "sw", Kind: Switch, Below: "s0"}, {Name: "nic", Kind: Endpoint, Below: "sw"},
		{Name: "near", Kind: Endpoint, Below: "sw"}, {Name: "acs", Kind: Endpoint, Below: "sw", Redirect: true},
		{Name: "root", Kind: Endpoint, Below: "s0"}, {Name: "far", Kind: Endpoint, Below: "s1"}}))(t)
}

func TestRoute(t *testing.T) {
	tree := routes(t, AnyBridge)
	for _, c := range []struct{ from, to, want string }{
		{"nic", "near", "nic up, near down"},
		{"nic", "acs", "nic up, sw up, sw down, acs down"},
		{"nic", "root", "nic up, sw up, root down"},
		{"nic", "far", "nic up, sw up, s0 to s1, far down"},
		{"nic", "s0", "nic up, sw up, s0 memory"},
		{"s0", "nic", "s0 memory, sw down, nic down"},
		{"s1", "nic", "s1 memory, s1 to s0, sw down, nic down"},
	} {
		var list []string
		for _, e := range tree.Route(c.from, c.to) {
			list = append(list, e.String())
		}
		if got := strings.Join(list, ", "); got != c.want {
			t.Errorf("%s to %s: %s; not %s", c.from, c.to, got, c.want)
		}
	}
	for _, c := range [][2]string{{"nic", "root"}, {"sw", "nic"}, {"nic", "nobody"}} {
		t.Run(fmt.Sprint(c), func(t *testing.T) {
			defer func() {
				if recover() == nil {
					t.Error("there is a route")
				}
			}()
			routes(t, NoRouting).Route(c[0], c[1])
		})
	}
}

// Of the bytes that posted writes put on a link, 256 of 280 (91.4 %) are payload.
func TestLoads(t *testing.T) {
	tree := routes(t, NoRouting)
	near := func(a, b float64) bool { return math.Abs(a-b) < 1e-4 }
	for _, l := range tree.Write("nic", "near") {
		if !near(1/l.PerByte, 0.9143) {
			t.Errorf("%v: %v", l.Edge, l.PerByte)
		}
	}
	rates := make(map[string]float64)
	for _, l := range tree.Read("nic", "s0") {
		rates[l.Edge.String()] += l.PerByte
	}
	if len(rates) != 5 || rates["s0 memory"] != 1 || !near(rates["nic down"], 276./256) ||
		!near(rates["nic up"], 24./512) {
		t.Errorf("%v", rates)
	}
}
