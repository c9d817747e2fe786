package qemu

import (
	"fmt"
	"os"
	"strings"

	"vnic.dev/vnic/internal/lab/pcie"
)

// Of a tree, each socket is an expander bus (pxb-pcie) of its NUMA node, each port a root port or a switch's
// downstream port. QEMU's generic switch with links of any speed is the CXL switch. Its ports have no power
// controller, without which QEMU does not remove a released device (hw/pci/pcie.c,
// pcie_cap_slot_write_config): so a removable device below a switch is at a port of TI's XIO3130, with one
// lane at 2.5 GT/s. No switch of QEMU has ACS.

const (
	firstBus  = pcie.OwnBuses // number of the first expander bus
	firstSlot = 0x10          // device number of the first expander bus on the root complex
)

// treeID returns QEMU's id of a socket or switch.
func treeID(name string) string { return "pcie." + name }

// portOf returns the id of the port above a tree's switch or endpoint: QEMU's bus of that device.
func portOf(name string) string { return "pcie-port." + name }

// checkTree checks what QEMU would report less clearly, or accept although the guest cannot see it.
func (c *Config) checkTree() error {
	if c.Tree == nil {
		return nil
	}
	var places []string
	for _, g := range c.GPUs {
		places = append(places, g.Place)
	}
	for _, n := range c.Netdevs {
		places = append(places, n.Place)
	}
	ends := make(map[string]bool)
	for _, n := range c.Tree.Nodes() {
		if n.Kind == pcie.Endpoint {
			ends[n.Name] = true
		}
	}
	for _, p := range places {
		if p == "" {
			continue
		}
		if !ends[p] {
			return fmt.Errorf("config: nothing in the PCIe tree has the name %q, or two devices have it", p)
		}
		delete(ends, p)
	}
	if err := c.Tree.Fits(); err != nil {
		return fmt.Errorf("config: %w", err)
	}
	if sockets := len(c.Tree.Children("")); c.RAMSize>>21 < uint64(sockets) {
		return fmt.Errorf("config: guest RAM of %d bytes for %d sockets: each has 2 MiB at least", c.RAMSize, sockets)
	}
	return nil
}

// tree returns the arguments for the Tree's sockets, switches and ports; nil: there is no Tree.
func (c *Config) tree() (args []string) {
	if c.Tree == nil {
		return nil
	}
	t := trunk{tree: c.Tree, bus: firstBus, hotplug: c.hotplug()}
	sockets := c.Tree.Children("")
	slack := (pcie.MaxBuses - firstBus - c.Tree.Buses()) / len(sockets)
	for i, s := range sockets {
		t.add("pxb-pcie,id=%s,bus=pcie.0,bus_nr=%d,numa_node=%d,addr=%#x", treeID(s.Name), t.bus, i, firstSlot+i)
		t.bus++
		t.below(s)
		t.bus += slack
	}
	return t.args
}

// trunk is the state of writing a tree's arguments.
type trunk struct {
	tree    *pcie.Tree
	args    []string
	bus     int             // number of the next bus
	chassis int             // number of the last port's chassis
	hotplug map[string]bool // by place: a removable device is there
}

func (t *trunk) add(format string, args ...any) {
	t.args = append(t.args, "-device", fmt.Sprintf(format, args...))
}

// below adds the ports and switches below a socket or switch, without endpoints. Guests number the buses depth first,
// from the expander bus's number on.
func (t *trunk) below(above pcie.Node) {
	for _, n := range t.tree.Children(above.Name) {
		t.chassis++
		t.bus++
		out := t.hotplug[n.Name]
		switch {
		case above.Kind == pcie.Socket:
			t.add("pcie-root-port,id=%s,bus=%s,chassis=%d,slot=0,hotplug=%s,io-reserve=0%s", portOf(n.Name),
				treeID(above.Name), t.chassis, onOff(out), speed(n.Link))
		case out:
			t.add("xio3130-downstream,id=%s,bus=%s,chassis=%d,slot=0,hotplug=on", portOf(n.Name), treeID(above.Name), t.chassis)
		default:
			t.add("cxl-downstream,id=%s,bus=%s,chassis=%d,slot=0,hotplug=off%s", portOf(n.Name), treeID(above.Name), t.chassis,
				speed(n.Link))
		}
		if n.Kind == pcie.Switch {
			t.bus++
			t.add("cxl-upstream,id=%s,bus=%s%s", treeID(n.Name), portOf(n.Name), speed(n.Link))
			t.below(n)
		}
	}
}

func onOff(on bool) string {
	if on {
		return "on"
	}
	return "off"
}

// speed returns a port's options for a link; "": the link's speed is unknown.
func speed(l pcie.Link) string {
	if !l.Known() {
		return ""
	}
	return fmt.Sprintf(",x-speed=%s,x-width=%d", strings.ReplaceAll(fmt.Sprint(l.Transfers()), ".", "_"), l.Width)
}

// on returns the option for a device's bus: its place, or the root complex; "" without a tree.
func (c *Config) on(place string) string {
	switch {
	case c.Tree == nil:
		return ""
	case place == "":
		return ",bus=pcie.0"
	}
	return ",bus=" + portOf(place)
}

// ramSizes returns the sizes of RAM files: one, or one for each socket of a Tree, because QEMU's vfio-user does
// not report offsets in a file (memory-backend-file,offset=, seen with 11.1).
func (c *Config) ramSizes() (sizes []uint64) {
	n := uint64(1)
	if c.Tree != nil {
		n = uint64(len(c.Tree.Children("")))
	}
	left := c.RAMSize
	for i := range n {
		size := left / (n - i) &^ (2<<20 - 1)
		sizes, left = append(sizes, size), left-size
	}
	return sizes
}

// nodes returns the arguments for a tree's sockets as NUMA nodes, with their shares of RAM and of the places for CPUs.
func (c *Config) nodes(f *files, ram []*os.File, places int) (objects, numa []string) {
	sizes := c.ramSizes()
	n := len(sizes)
	for i, size := range sizes {
		objects = append(objects, "-object", f.ram(fmt.Sprint("ram", i), size, ram, i))
		cpus := ""
		for cpu := range places {
			on := cpu*n/places == i
			if places < n {
				on = cpu == i
			}
			if on {
				cpus += fmt.Sprintf(",cpus=%d", cpu)
			}
		}
		numa = append(numa, "-numa", fmt.Sprintf("node,nodeid=%d%s,memdev=ram%d", i, cpus, i))
	}
	return objects, numa
}

// distances returns the arguments for distances between NUMA nodes; sockets has each node's socket. A node's distance
// to itself is 10, as in ACPI (System Locality Distance Information Table).
func distances(sockets []string) (args []string) {
	const local, same, far = 10, 20, 40
	for i, a := range sockets {
		for j, b := range sockets {
			d := far
			switch {
			case i == j:
				d = local
			case a == b:
				d = same
			}
			args = append(args, "-numa", fmt.Sprintf("dist,src=%d,dst=%d,val=%d", i, j, d))
		}
	}
	return args
}
