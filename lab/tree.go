package lab

import (
	"strings"

	"vnic.dev/vnic/pcie"
)

// The root complex of a guest without sockets. It forwards nothing between its ports, and each NIC has a PCIe switch of
// its own below it.
const rootComplex = "rc0"

// Local is the name of a NIC or GPU inside the guest: in the lab it may begin with the guest's, as a.nic0.
func (g *Guest) Local(name string) string { return strings.TrimPrefix(name, g.Name+".") }

// inTree are the names of a NIC and a GPU in the guest's tree. Without sockets they may have the same name.
func (g *Guest) nicInTree(n *NIC) string {
	if len(g.Sockets) == 0 {
		return "nic" + n.Name
	}
	return g.Local(n.Name)
}

func (g *Guest) gpuInTree(m *GPU) string {
	if len(g.Sockets) == 0 {
		return "gpu" + m.Name
	}
	return g.Local(m.Name)
}

// Tree is the PCIe tree of guest i, and the names of its NICs and GPUs there. The description has been checked.
func (d *Description) Tree(i int) (tree *pcie.Tree, nics, gpus []string) {
	c := d.Complete()
	g := &c.Guests[i]
	tree, err := g.tree()
	if err != nil {
		panic("lab: a description that was not checked: " + err.Error())
	}
	for j := range g.NICs {
		nics = append(nics, g.nicInTree(&g.NICs[j]))
	}
	for j := range g.GPUs {
		gpus = append(gpus, g.gpuInTree(&g.GPUs[j]))
	}
	return tree, nics, gpus
}

// nodes are the parts of the guest's tree: sockets, switches, NICs, GPUs, in this order. The guest is complete.
func (g *Guest) nodes() (nodes []pcie.Node) {
	add := func(name string, kind pcie.Kind, s Slot) {
		nodes = append(nodes, pcie.Node{Name: name, Kind: kind, Below: s.Below, Link: s.Link, Redirect: s.Redirect})
	}
	for i, s := range g.Sockets {
		nodes = append(nodes, pcie.Node{Name: s.Name, Kind: pcie.Socket, Routing: s.Routing, NUMA: i})
	}
	for _, s := range g.Switches {
		add(s.Name, pcie.Switch, s.Slot)
	}
	bare := len(g.Sockets) == 0
	if bare {
		nodes = append(nodes, pcie.Node{Name: rootComplex, Kind: pcie.Socket})
		for _, n := range g.NICs {
			add("sw"+n.Name, pcie.Switch, Slot{Below: rootComplex})
		}
	}
	for i := range g.NICs {
		n := &g.NICs[i]
		if bare {
			n.Slot.Below = "sw" + n.Name
		}
		add(g.nicInTree(n), pcie.Endpoint, n.Slot)
	}
	for i := range g.GPUs {
		m := &g.GPUs[i]
		if bare {
			m.Slot.Below = "sw" + g.NICs[g.owner(i)].Name
		}
		add(g.gpuInTree(m), pcie.Endpoint, m.Slot)
	}
	return nodes
}

func (g *Guest) tree() (*pcie.Tree, error) { return pcie.New(g.nodes()) }
