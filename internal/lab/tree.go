package lab

import (
	"strings"

	"vnic.dev/vnic/internal/lab/pcie"
)

// rootComplex is the name of the only socket in the tree of a guest without sockets.
const rootComplex = "rc0"

// Local returns a NIC's or GPU's name without the guest's name and the dot before it.
func (g *Guest) Local(name string) string { return strings.TrimPrefix(name, g.Name+".") }

// inTree returns the name in the tree of a NIC or GPU: its name without the guest's name, or, if the guest's name is
// not before it, kind and the name, because a NIC and a GPU may then have the same name.
func (g *Guest) inTree(kind, name string) string {
	if local := g.Local(name); local != name {
		return local
	}
	return kind + name
}

func (g *Guest) nicInTree(n *NIC) string { return g.inTree("nic", n.Name) }
func (g *Guest) gpuInTree(m *GPU) string { return g.inTree("gpu", m.Name) }

// inside reports whether a NIC is in the tree, and not on the root complex beside it.
func (g *Guest) inside(n *NIC) bool {
	return len(g.Sockets) == 0 || n.GPUs == nil || len(n.GPUs) > 0 || n.Slot != Slot{}
}

func (g *Guest) switchOf(n *NIC) string {
	if local := g.Local(n.Name); local != n.Name {
		return "sw." + local // names in lab files have no dot
	}
	return "sw" + n.Name
}

// Tree returns the PCIe tree of guest i, and the names of the NICs and GPUs in it. The description must be
// valid (Check).
func (d *Description) Tree(i int) (tree *pcie.Tree, nics, gpus []string) {
	c := d.Complete()
	g := &c.Guests[i]
	tree, err := g.tree()
	if err != nil {
		panic("lab: a description that was not checked: " + err.Error())
	}
	for j := range g.NICs {
		if n := &g.NICs[j]; g.inside(n) {
			nics = append(nics, g.nicInTree(n))
		}
	}
	for j := range g.GPUs {
		gpus = append(gpus, g.gpuInTree(&g.GPUs[j]))
	}
	return tree, nics, gpus
}

// nodes returns the tree's sockets, switches, NICs and GPUs, in this order. The guest must be complete
// (Description.Complete). If it has no sockets, nodes sets Slot.Below of its NICs and GPUs.
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
		for i := range g.NICs {
			add(g.switchOf(&g.NICs[i]), pcie.Switch, Slot{Below: rootComplex})
		}
	}
	for i := range g.NICs {
		n := &g.NICs[i]
		if bare {
			n.Slot.Below = g.switchOf(n)
		}
		if g.inside(n) {
			add(g.nicInTree(n), pcie.Endpoint, n.Slot)
		}
	}
	for i := range g.GPUs {
		m := &g.GPUs[i]
		if bare {
			m.Slot.Below = g.switchOf(&g.NICs[g.owner(i)])
		}
		add(g.gpuInTree(m), pcie.Endpoint, m.Slot)
	}
	return nodes
}

func (g *Guest) tree() (*pcie.Tree, error) { return pcie.New(g.nodes()) }
