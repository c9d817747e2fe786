package lab

import (
	"fmt"
	"strings"
	"testing"

	"vnic.dev/vnic/internal/lab/pcie"
	"vnic.dev/vnic/internal/testkit"
)

// Differences groups, by reason, the pairs for which Linux decides otherwise than the lab.
func TestDifferencesFromLinux(t *testing.T) {
	slot := func(below string, redirect bool) Slot { return Slot{Below: below, Redirect: redirect} }
	describe := func(routing pcie.Routing, redirect bool) *Description {
		return &Description{Guests: []Guest{{Sockets: []Socket{{Name: "s", Routing: routing}},
			Switches: []Switch{{Name: "x", Slot: slot("s", false)}},
			NICs: []NIC{{Name: "n", Model: Virtio, Slot: slot("x", false)},
				{Name: "m", Model: Virtio, Slot: slot("x", false), GPUs: []int{}}},
			GPUs: []GPU{{Name: "a", Memory: 4096, Slot: slot("x", redirect)}, {Name: "b", Memory: 4096,
				Slot: slot("s", false)}}}}}
	}
	alike := describe(pcie.NoRouting, false)
	tree, _, _ := alike.Tree(0)
	redirected, _, _ := describe(pcie.NoRouting, true).Tree(0)
	zen, _, _ := describe(pcie.AnyBridge, true).Tree(0)
	bare := &Description{Guests: []Guest{{NICs: []NIC{{Model: Virtio}}, GPUs: []GPU{{Memory: 4096}}}}}
	off := describe(pcie.AnyBridge, false)
	off.NoP2P = true
	for _, c := range []struct {
		name  string
		d     *Description
		linux *pcie.Tree
		want  string
	}{
		{"alike", alike, SeenByLinux(tree, DriverNode), ""},
		{"off", off, SeenByLinux(tree, DriverNode), ""},
		{"bare", bare, nil, ""},
		{"redirects", describe(pcie.NoRouting, true), SeenByLinux(redirected, DriverNode),
			"allows it: QEMU's switches have no ACS nicn-gpua"},
		{"forwards", describe(pcie.AnyBridge, false), SeenByLinux(zen, DriverNode),
			"refuses it: its CPU is none whose host bridges are known to forward nicn-gpub"},
		{"a CPU that forwards", alike, zen, "allows it: its CPU is one whose host bridges forward nicn-gpub"},
		{"ports that redirect", alike, redirected, "refuses it: ports of its tree redirect (ACS) nicn-gpua"},
	} {
		testkit.OK(t, c.d.Check())
		var got []string
		for _, p := range c.d.Differences(0, func(nic, gpu string) pcie.Path { return c.linux.Path(nic, gpu) }) {
			got = append(got, strings.TrimPrefix(p.Text, "Linux in this guest ")+" "+p.Some())
		}
		testkit.Equal(t, c.name, strings.Join(got, "; "), c.want)
	}
	p := Pairs{}
	for i := range 10 {
		p.Names = append(p.Names, fmt.Sprint("n-g", i))
	}
	testkit.Equal(t, "many", p.Some(), "n-g0 n-g1 n-g2 n-g3 n-g4 n-g5 n-g6 n-g7 and 2 more")
}
