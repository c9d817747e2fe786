package stat

import (
	"net"
	"net/netip"

	"vnic.dev/vnic/internal/lab"
	"vnic.dev/vnic/internal/lab/pcie"
)

// machine describes a guest's hardware for a page.
func machine(m *lab.Machine) Machine {
	x := Machine{Name: m.Name, Tree: []TreeNode{}, NICs: []NIC{}, GPUs: []PageGPU{}}
	kinds := map[string]string{}
	for _, g := range m.GPUs {
		x.GPUs = append(x.GPUs, PageGPU{Name: g.Name, ID: g.ID(), Bytes: g.Size(), Place: g.Place})
		kinds[g.Place] = "gpu"
	}
	for _, p := range m.Ports {
		n := NIC{Name: p.Name, Model: p.Model.Name, MAC: net.HardwareAddr(p.MAC[:]).String(), MTU: p.MTU, Place: p.Place,
			Addrs: []string{}, Paths: []PagePath{}}
		for _, a := range []netip.Prefix{p.Addr4, p.Addr6} {
			if a.IsValid() {
				n.Addrs = append(n.Addrs, a.String())
			}
		}
		for _, g := range p.GPUs {
			n.Paths = append(n.Paths, PagePath{GPU: g.Name, Direct: p.NIC().Reaches(g.ID())})
		}
		x.NICs = append(x.NICs, n)
		kinds[p.Place] = "nic"
	}
	if m.Bare {
		return x
	}
	for _, n := range m.Tree.Nodes() {
		t := TreeNode{Name: n.Name, Kind: "other", Below: n.Below}
		switch {
		case n.Kind == pcie.Socket:
			t.Kind = "socket"
		case n.Kind == pcie.Switch:
			t.Kind = "switch"
		case kinds[n.Name] != "":
			t.Kind = kinds[n.Name]
		}
		x.Tree = append(x.Tree, t)
	}
	return x
}
