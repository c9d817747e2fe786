package stat

import (
	"cmp"
	"net"
	"net/netip"
	"time"

	"vnic.dev/vnic/internal/lab"
	"vnic.dev/vnic/internal/lab/pcie"
)

// Page is what the web page (internal/report/page) shows of a vnic at one moment. The JSON keys besides Snapshot's may
// change with each version.
type Page struct {
	*Snapshot
	Machines []Machine `json:"machines"`
	Memory   []GPUMap  `json:"memory"`
	Events   []Event   `json:"events"` // the latest events of each port, oldest first (events.read)
}

// Machine is a guest's hardware.
type Machine struct {
	Name string     `json:"name"`
	Tree []TreeNode `json:"tree"` // the PCIe tree; empty if the lab describes none
	NICs []NIC      `json:"nics"`
	GPUs []PageGPU  `json:"gpus"`
}

// TreeNode is a socket, switch or device in a machine's PCIe tree.
type TreeNode struct {
	Name  string `json:"name"`
	Kind  string `json:"kind"`            // "socket", "switch", "gpu", "nic" or "other"
	Below string `json:"below,omitempty"` // Name of the node above it; "" for a socket
}

// NIC is a NIC of a machine.
type NIC struct {
	Name  string     `json:"name"` // PortCounters.Name
	Model string     `json:"model"`
	MAC   string     `json:"mac"`
	Addrs []string   `json:"addrs"`
	MTU   int        `json:"mtu"`
	Place string     `json:"place,omitempty"` // TreeNode.Name of the NIC; "": the lab describes none
	Paths []PagePath `json:"paths"`           // to the NIC's GPUs
}

// PagePath is a NIC's way to a GPU.
type PagePath struct {
	GPU    string `json:"gpu"`    // PageGPU's name
	Direct bool   `json:"direct"` // peer to peer; false: payload goes through host memory
}

// PageGPU is a machine's GPU.
type PageGPU struct {
	Name  string `json:"name"`
	ID    int    `json:"id"`
	Bytes uint64 `json:"bytes"`
	Place string `json:"place,omitempty"`
}

// GPUMap shows the ranges of a GPU's memory that NICs are known to use. The NIC (MemoryRange.Port) may write to a
// "posted" range. A "held" range was posted and is no longer. A "send" range belongs to a binding for transmit.
type GPUMap struct {
	GPU    string        `json:"gpu"` // PageGPU's name
	Bytes  uint64        `json:"bytes"`
	Ranges []MemoryRange `json:"ranges"` // by offset, without overlap
}

// MemoryRange is a range of a GPU's memory. Off and Len are multiples of a unit: a page, or more in large GPUs. A unit
// counts as used if a part of it is.
type MemoryRange struct {
	Off     uint64 `json:"off"` // bytes
	Len     uint64 `json:"len"`
	State   string `json:"state"`             // see GPUMap
	Port    string `json:"port"`              // NIC.Name
	Queue   int    `json:"queue"`             // receive queue; -1 for "send"
	Binding uint32 `json:"binding,omitempty"` // ID: for "send" of the range's binding, else of the queue's newest; 0: none
}

// Event is something that has happened in a lab.
type Event struct {
	Seq  uint64    `json:"seq"` // from 1 on
	Time time.Time `json:"time"`
	Port string    `json:"port,omitempty"` // the port, or the GPU, that the event is about
	Kind string    `json:"kind"`
	Text string    `json:"text"`
}

// Page reads what the web page shows, and waits for no guest's answer: token counts are the guests' latest answers. Any
// goroutine may call it until Close. From the end of a lab until SetPorts sets other ports, it returns the Page of that
// end with the present events.
func (s *Server) Page() *Page {
	if last := s.last.Load(); last != nil && s.ports.Load() == nil {
		p := *last
		p.Events = s.events.read()
		return &p
	}
	return s.page(shownFlows, s.holders.latest)
}

func (s *Server) page(flows int, ask askFunc) *Page {
	p := &Page{Snapshot: s.snapshot(flows, ask), Machines: []Machine{}, Memory: []GPUMap{}, Events: s.events.read()}
	if l := s.lab.Load(); l != nil {
		for _, m := range l.lab.Machines() {
			p.Machines = append(p.Machines, machine(m))
		}
		p.Memory = l.maps.read(l.lab)
	}
	return p
}

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
		kind := map[pcie.Kind]string{pcie.Socket: "socket", pcie.Switch: "switch"}[n.Kind]
		x.Tree = append(x.Tree, TreeNode{Name: n.Name, Kind: cmp.Or(kind, kinds[n.Name], "other"), Below: n.Below})
	}
	return x
}
