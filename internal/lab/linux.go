package lab

import (
	"fmt"
	"slices"
	"strings"

	"vnic.dev/vnic/internal/lab/pcie"
)

// Pairs are pairs of a NIC and a GPU, by their names in the guest's tree, that have one text in common.
type Pairs struct {
	Text  string
	Names []string // nic0-gpu0
}

// Some names some of many.
func (p *Pairs) Some() string {
	const most = 8
	if len(p.Names) > most {
		return fmt.Sprintf("%s and %d more", strings.Join(p.Names[:most], " "), len(p.Names)-most)
	}
	return strings.Join(p.Names, " ")
}

// AddPair adds a pair to the pairs with its text.
func AddPair(list []Pairs, text, nic, gpu string) []Pairs {
	i := slices.IndexFunc(list, func(p Pairs) bool { return p.Text == text })
	if i < 0 {
		i, list = len(list), append(list, Pairs{Text: text})
	}
	list[i].Names = append(list[i].Names, nic+"-"+gpu)
	return list
}

// SeenByLinux is what a guest's own kernel sees of a tree under a QEMU that emulates the CPU: no port redirects, and
// the CPU is none whose host bridges are known to forward; unless GPUs have the driver DriverVNICGPU and some host
// bridge does forward, for then the CPU is of a kind whose host bridges all do.
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

// Forwards reports whether a host bridge of a tree forwards requests between its ports.
func Forwards(t *pcie.Tree) bool {
	return slices.ContainsFunc(t.Children(""), func(s pcie.Node) bool { return s.Routing != pcie.NoRouting })
}

// Differences lists the NICs and GPUs for which the kernel of guest i comes to another verdict than
// the lab on whether the NIC reaches the GPU. linux gives the kernel's path between two. The lab's
// verdict is the one that is counted. There are no differences in a guest without sockets, which
// does not see its tree, and where peer to peer is off. The description has been checked.
func (d *Description) Differences(i int, linux func(nic, gpu string) pcie.Path) []Pairs {
	if d.NoP2P || len(d.Guests[i].Sockets) == 0 {
		return nil
	}
	tree, _, _ := d.Tree(i)
	return d.pairs(i, func(_ Model, nic, gpu string) string { return difference(tree.Path(nic, gpu), linux(nic, gpu)) })
}

// Refused lists the GPUs whose memory the kernel of guest i binds to no queue of a NIC that it drives, with the reason.
// The description has been checked.
func (d *Description) Refused(i int, linux func(nic, gpu string) pcie.Path) []Pairs {
	return d.pairs(i, func(m Model, nic, gpu string) string {
		if path := linux(nic, gpu); m.Kernel && !path.P2P() { // our driver asks nobody
			return "Linux in this guest refuses it: " + path.Reason
		}
		return ""
	})
}

// pairs are the NICs of guest i with the GPUs that they may address, by the text that each pair gets; "": it gets none.
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

// difference puts into words how the lab's path and the kernel's differ; "": they do not.
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
