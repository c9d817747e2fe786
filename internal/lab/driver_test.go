package lab

import (
	"strings"
	"testing"

	"vnic.dev/vnic/internal/control"
	"vnic.dev/vnic/internal/lab/pcie"
	"vnic.dev/vnic/internal/testkit"
)

// split describes a guest with NICs n and m and two GPUs: a is below the NICs' switch, b is not. change, if not nil,
// alters the guest.
func split(change func(*Guest)) *Description {
	g := Guest{Name: "g", Driver: DriverVNICGPU, Sockets: []Socket{{Name: "s"}},
		Switches: []Switch{{Name: "x", Slot: Slot{Below: "s"}}},
		NICs: []NIC{{Name: "n", Model: GVE, Slot: Slot{Below: "x"}},
			{Name: "m", Model: GVE, Slot: Slot{Below: "x"}, GPUs: []int{}}},
		GPUs: []GPU{{Name: "a", Memory: 4096, Slot: Slot{Below: "x"}}, {Name: "b", Memory: 4096, Slot: Slot{Below: "s"}}}}
	if change != nil {
		change(&g)
	}
	return &Description{Guests: []Guest{g}}
}

// Invariant: lab: A GPU is a NUMA node if the NIC is the kernel's and the GPU has no driver of its
// own, else a PCI device.
func TestModelOfAGuestWithADriver(t *testing.T) {
	for _, c := range []struct {
		driver, model string
		kernel, node  bool
	}{
		{"", GVE, true, true}, {DriverNode, GVE, true, true}, {DriverVNICGPU, GVE, true, false},
		{"", Virtio, false, false}, {DriverNode, Virtio, false, false}, {DriverVNICGPU, Virtio, false, false},
	} {
		g := Guest{Driver: c.driver, NICs: []NIC{{Model: c.model}}, GPUs: []GPU{{Memory: 4 << 20}}}
		m := g.ModelOf(&g.NICs[0])
		if m.Name != c.model || m.Kernel != c.kernel || m.Node != c.node {
			t.Errorf("%q with %s: %+v", c.driver, c.model, m)
		}
		l := testkit.Must(Open(Description{Guests: []Guest{g}}, Options{}))(t)
		hw, attach := l.Machine(0), control.Attach(control.AttachBAR)
		if c.node {
			attach = control.AttachNode
		}
		info := testkit.Must(hw.Ports[0].NIC().GPUs())(t)
		if len(info) != 1 || info[0].Attach != attach || hw.GPUs[0].Node != c.node || hw.Ports[0].Model.Node != c.node {
			t.Errorf("%q with %s: %+v, a node: %v", c.driver, c.model, info, hw.GPUs[0].Node)
		}
		if hw.Bare != (c.driver != DriverVNICGPU) || (hw.Driver == DriverVNICGPU) != (c.driver == DriverVNICGPU) {
			t.Errorf("%q with %s: driver %q, bare: %v", c.driver, c.model, hw.Driver, hw.Bare)
		}
		testkit.OK(t, l.Close())
	}
}

// Invariant: lab: With the driver vnicgpu the GPU of a gve guest may be what a PCI device may be:
// of any power of two from 4K, hotplug below a port, and addressed by NICs of both models.
func TestGPUsOfADriverArePCIDevices(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*Guest)
		node   string // Check's error with DriverNode; "": none
		pci    string // Check's error with DriverVNICGPU; "": none
	}{
		"4 KiB":           {func(g *Guest) { g.GPUs[1].Memory = 4096 }, "not a multiple of 2M", ""},
		"1 MiB":           {func(g *Guest) { g.GPUs[1].Memory = 1 << 20 }, "not a multiple of 2M", ""},
		"2 KiB":           {func(g *Guest) { g.GPUs[1].Memory = 2048 }, "not a multiple of 2M", "not a power of two"},
		"no power of two": {func(g *Guest) { g.GPUs[1].Memory = 6 << 20 }, "", "not a power of two from 4K"},
		"hotplug":         {func(g *Guest) { g.GPUs[0].Hotplug = true }, "its memory is a NUMA node's", ""},
		"hotplug on the root complex": {func(g *Guest) {
			*g = Guest{Driver: g.Driver, NICs: []NIC{{Model: GVE}}, GPUs: []GPU{{Memory: 4 << 20, Hotplug: true}}}
		}, "its memory is a NUMA node's", "it is on the root complex"},
		"a gVNIC that is hotplug": {func(g *Guest) { g.NICs[0].Hotplug = true }, "hotplug: not with model gve",
			"hotplug: not with model gve"},
		"both models": {func(g *Guest) { g.NICs[1] = NIC{Name: "m", Model: Virtio, Slot: Slot{Below: "x"}} },
			"NICs of both models may address it", ""},
	} {
		t.Run(name, func(t *testing.T) {
			for driver, want := range map[string]string{DriverNode: c.node, DriverVNICGPU: c.pci} {
				d := split(func(g *Guest) {
					g.GPUs[0].Memory, g.GPUs[1].Memory = 4<<20, 4<<20
					c.change(g)
					g.Driver = driver
				})
				err := d.Check()
				if want != "" {
					testkit.ErrorSays(t, err, want)
					continue
				}
				testkit.OK(t, err)
				testkit.OK(t, testkit.Must(Open(*d, Options{}))(t).Close())
			}
		})
	}
}

// HotplugFor makes the GPU that a script removes hotplug if it is a PCI device, but not if it is a NUMA node.
func TestScriptRemovesAGPUOfADriver(t *testing.T) {
	script := []Event{{Change: testkit.Must(ParseChange("gpu g.a remove"))(t)}}
	for driver, want := range map[string]bool{DriverNode: false, DriverVNICGPU: true} {
		d := split(func(g *Guest) {
			g.Driver = driver
			for i := range g.GPUs {
				g.GPUs[i].Name, g.GPUs[i].Memory = "g."+g.GPUs[i].Name, 4<<20
			}
		})
		d.HotplugFor(script)
		testkit.Equal(t, driver, d.Guests[0].GPUs[0].Hotplug, want)
		testkit.Equal(t, driver+", the other", d.Guests[0].GPUs[1].Hotplug, false)
		testkit.OK(t, d.Check())
	}
}

func TestForwards(t *testing.T) {
	for _, c := range []struct {
		sockets []pcie.Routing
		want    bool
	}{
		{[]pcie.Routing{pcie.NoRouting}, false}, {[]pcie.Routing{pcie.NoRouting, pcie.NoRouting}, false},
		{[]pcie.Routing{pcie.SameBridge}, true}, {[]pcie.Routing{pcie.NoRouting, pcie.AnyBridge}, true},
	} {
		d := split(func(g *Guest) {
			g.Sockets = nil
			for i, r := range c.sockets {
				g.Sockets = append(g.Sockets, Socket{Name: []string{"s", "s1"}[i], Routing: r})
			}
		})
		testkit.OK(t, d.Check())
		tree, _, _ := d.Tree(0)
		if Forwards(tree) != c.want {
			t.Errorf("%v: %v", c.sockets, !c.want)
		}
	}
}

// Invariant: lab: With the driver vnicgpu Linux allows peer-to-peer below one switch, and between
// all devices if a host bridge of the lab forwards; it sees no redirecting ports.
func TestWhatLinuxSeesWithADriver(t *testing.T) {
	const refuses = "Linux in this guest refuses it: "
	const zen = "Linux in this guest allows it: its CPU is one whose host bridges forward"
	none := func(*Guest) {}
	forwards := func(g *Guest) { g.Sockets[0].Routing = pcie.AnyBridge }
	beside := func(g *Guest) { g.Sockets = append(g.Sockets, Socket{Name: "s1", Routing: pcie.SameBridge}) }
	redirect := func(g *Guest) { g.GPUs[0].Slot.Redirect = true }
	apart := func(g *Guest) { g.NICs[0].GPUs, g.NICs[1].GPUs = []int{0}, []int{1} }
	for _, c := range []struct {
		name        string
		driver      string
		change      func(*Guest)
		refused     string
		differences string
	}{
		{"none", DriverVNICGPU, none, "nicn-gpub", ""},
		{"any", DriverVNICGPU, forwards, "", ""},
		{"a bridge beside it forwards", DriverVNICGPU, beside, "", zen + " nicn-gpub"},
		{"redirects", DriverVNICGPU, redirect, "nicn-gpub",
			"Linux in this guest allows it: QEMU's switches have no ACS nicn-gpua"},
		{"a node, and any", DriverNode, forwards, "nicn-gpub",
			refuses + "its CPU is none whose host bridges are known to forward nicn-gpub"},
		{"a NIC that is not the kernel's", DriverVNICGPU, func(g *Guest) { g.NICs[0].Model = Virtio }, "", ""},
		{"not reached", DriverVNICGPU, apart, "nicm-gpub", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := split(func(g *Guest) { c.change(g); g.Driver = c.driver })
			if c.driver == DriverVNICGPU { // with DriverNode Check refuses 4 KiB
				testkit.OK(t, d.Check())
			}
			tree, _, _ := d.Tree(0)
			linux := SeenByLinux(tree, c.driver)
			var refused, differences []string
			for _, p := range d.Refused(0, linux.Path) {
				if reason := strings.TrimPrefix(p.Text, refuses); reason == "" || reason == p.Text {
					t.Errorf("it does not say why: %q", p.Text)
				}
				refused = append(refused, p.Some())
			}
			for _, p := range d.Differences(0, linux.Path) {
				differences = append(differences, p.Text+" "+p.Some())
			}
			testkit.Equal(t, "refused", strings.Join(refused, "; "), c.refused)
			testkit.Equal(t, "differences", strings.Join(differences, "; "), c.differences)
		})
	}
	bare := &Description{Guests: []Guest{{Driver: DriverVNICGPU, NICs: []NIC{{Model: GVE, GPUs: []int{0}}, {Model: GVE}},
		GPUs: []GPU{{Memory: 4096}, {Memory: 4096}}}}}
	testkit.OK(t, bare.Check())
	tree, nics, gpus := bare.Tree(0)
	list := bare.Refused(0, SeenByLinux(tree, DriverVNICGPU).Path)
	if len(list) != 1 || list[0].Some() != nics[1]+"-"+gpus[0] {
		t.Errorf("without sockets: %+v", list)
	}
}
