package lab

import (
	"fmt"
	"slices"
	"strings"

	"vnic.dev/vnic/internal/lab/pcie"
)

// Pairs is a text, and the pairs of a NIC and a GPU to which it applies.
type Pairs struct {
	Text  string
	Names []string // as nic0-gpu0
}

// Some returns the names of the first 8 pairs, and how many more there are.
func (p *Pairs) Some() string {
	const most = 8
	if len(p.Names) > most {
		return fmt.Sprintf("%s and %d more", strings.Join(p.Names[:most], " "), len(p.Names)-most)
	}
	return strings.Join(p.Names, " ")
}

// AddPair adds a NIC and a GPU to the Pairs with this text in list, which it makes if there are none, and returns the
// list.
func AddPair(list []Pairs, text, nic, gpu string) []Pairs {
	i := slices.IndexFunc(list, func(p Pairs) bool { return p.Text == text })
	if i < 0 {
		i, list = len(list), append(list, Pairs{Text: text})
	}
	list[i].Names = append(list[i].Names, nic+"-"+gpu)
	return list
}

// SeenByLinux returns the tree as a guest's kernel sees it in a QEMU that emulates the CPU. In it no port
// redirects. All host bridges forward, also to each other, if a host bridge of t forwards and driver is
// DriverVNICGPU; else none does.
func SeenByLinux(t *pcie.Tree, driver string) *pcie.Tree {
	nodes := t.Nodes()
	routing := pcie.NoRouting
	if driver == DriverVNICGPU && Forwards(t) {
		routing = pcie.AnyBridge
	}
	for i := range nodes {
		nodes[i].Redirect = false
		if nodes[i].Kind == pcie.Socket {
			nodes[i].Routing = routing
		}
	}
	s, err := pcie.New(nodes)
	if err != nil {
		panic("lab: a tree that was one: " + err.Error())
	}
	return s
}

// Forwards reports whether a host bridge of a tree forwards requests.
func Forwards(t *pcie.Tree) bool {
	return slices.ContainsFunc(t.Children(""), func(s pcie.Node) bool { return s.Routing != pcie.NoRouting })
}

// Differences lists the NICs and GPUs of guest i for which its kernel and the lab disagree on whether the NIC reaches
// the GPU peer to peer: none with NoP2P or without sockets. linux returns the kernel's path. The description must be
// valid (Check).
func (d *Description) Differences(i int, linux func(nic, gpu string) pcie.Path) []Pairs {
	if d.NoP2P || len(d.Guests[i].Sockets) == 0 {
		return nil
	}
	tree, _, _ := d.Tree(i)
	return d.pairs(i, func(_ Model, nic, gpu string) string { return difference(tree.Path(nic, gpu), linux(nic, gpu)) })
}

// Refused lists the NICs of guest i that its kernel drives (Model.Kernel), with the GPUs whose memory the kernel
// refuses to bind to their queues. linux returns the kernel's path. The description must be valid (Check).
func (d *Description) Refused(i int, linux func(nic, gpu string) pcie.Path) []Pairs {
	return d.pairs(i, func(m Model, nic, gpu string) string {
		if path := linux(nic, gpu); m.Kernel && !path.P2P() { // Linux decides only for its own drivers
			return "Linux in this guest refuses it: " + path.Reason
		}
		return ""
	})
}

// pairs lists the NICs of guest i with the GPUs that they may address, grouped by the result of text; it leaves out
// pairs with the result "".
func (d *Description) pairs(i int, text func(m Model, nic, gpu string) string) (list []Pairs) {
	c := d.Complete()
	g := &c.Guests[i]
	for j := range g.NICs {
		n := &g.NICs[j]
		for k := range g.GPUs {
			nic, gpu := g.nicInTree(n), g.gpuInTree(&g.GPUs[k])
			if n.Reaches(k) {
				list = AddPair(list, text(g.ModelOf(n), nic, gpu), nic, gpu)
			}
		}
	}
	return slices.DeleteFunc(list, func(p Pairs) bool { return p.Text == "" })
}

// difference describes how the paths differ; "": both are peer to peer, or neither is.
func difference(path, linux pcie.Path) string {
	switch {
	case path.P2P() == linux.P2P():
		return ""
	case linux.Kind == pcie.Bus:
		return "Linux in this guest allows it: QEMU's switches have no ACS"
	case linux.P2P():
		return "Linux in this guest allows it: its CPU is one whose host bridges forward"
	case strings.HasPrefix(linux.Reason, "ACS"):
		return "Linux in this guest refuses it: ports of its tree redirect (ACS)"
	}
	return "Linux in this guest refuses it: its CPU is none whose host bridges are known to forward"
}
