// Package host reads the PCIe tree of this machine from sysfs.
//
// It decides about peer to peer by the same data as Linux (drivers/pci/p2pdma.c): the CPU's vendor and family, a
// list of devices that represent host bridges, and Access Control Services in configuration space, which only
// root may read.
//
// The package is not API (README, Stability).
package host

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"vnic.dev/vnic/internal/lab/pcie"
)

// Machine is the PCIe tree of a machine, and its NICs and GPUs.
type Machine struct {
	Tree *pcie.Tree
	NICs []Device
	GPUs []Device // graphics and other accelerators, and a vnic guest's emulated GPUs that are PCI devices

	// ACSKnown is false if at most 64 bytes of the configuration space of a port above an endpoint could be read;
	// that port does not redirect in the tree.
	ACSKnown bool
	// Hypervisor is the machine's vendor, or "a hypervisor", in a virtual machine; "": the CPU reports no
	// hypervisor.
	Hypervisor string
}

// Device is a NIC or a GPU.
type Device struct {
	Name      string // as 0000:3b:00.0
	Vendor    uint16
	Device    uint16
	Interface string // of a NIC; "": none
}

// Read reads the tree of the machine with the given /proc and /sys.
func Read(proc, sys string) (*Machine, error) {
	m := &Machine{ACSKnown: true}
	cpu, err := m.cpu(proc, sys)
	if err != nil {
		return nil, err
	}
	if err := directory(sys); err != nil {
		return nil, err
	}
	r := reader{machine: m, sys: sys}
	if r.devices, err = readDevices(sys); err != nil {
		return nil, fmt.Errorf("PCI devices: %w", err)
	}
	nodes, err := r.nodes(cpu)
	if err != nil {
		return nil, err
	}
	m.Tree, err = pcie.New(nodes)
	return m, err
}

// cpu returns the routing of host bridges that are not listed, and sets Hypervisor if the CPU reports one.
func (m *Machine) cpu(proc, sys string) (pcie.Routing, error) {
	if err := directory(proc); err != nil {
		return 0, err
	}
	p, err := readProcessor(proc)
	if err != nil {
		return 0, fmt.Errorf("CPUs: %w", err)
	}
	if slices.Contains(p.flags, "hypervisor") {
		vendor, _ := readValue(filepath.Join(sys, "class/dmi/id/sys_vendor")) // not all machines have it
		m.Hypervisor = cmp.Or(vendor, "a hypervisor")
	}
	const zen = 0x17
	if family, _ := strconv.Atoi(p.family); p.vendor == "AuthenticAMD" && family >= zen {
		return pcie.AnyBridge, nil
	}
	return pcie.NoRouting, nil
}

func directory(path string) error {
	info, err := os.Stat(path)
	if err != nil {
		return fmt.Errorf("could not read %q: %w", path, err)
	}
	if !info.IsDir() {
		return fmt.Errorf("mount point %q is not a directory", path)
	}
	return nil
}

// Intel's devices that represent host bridges which forward requests (pci_p2pdma_whitelist).
const intel = 0x8086

var listed = map[uint32]pcie.Routing{
	0x3c00: pcie.SameBridge, 0x3c01: pcie.SameBridge, // Xeon E5
	0x2f00: pcie.SameBridge, 0x2f01: pcie.SameBridge, // Xeon E5 v3, E7 v3
	0x2030: pcie.AnyBridge, 0x2031: pcie.AnyBridge, 0x2032: pcie.AnyBridge, 0x2033: pcie.AnyBridge, // Skylake-E
	0x2020: pcie.AnyBridge,                         // Skylake-E
	0x09a2: pcie.AnyBridge,                         // Ice Lake
	0x0b25: pcie.AnyBridge, 0x0cfe: pcie.AnyBridge, // Sapphire Rapids: DSA, IAX
}

type reader struct {
	machine *Machine
	sys     string
	devices map[string]*device
}

// Classes of devices (PCI Code and ID Assignment Specification, section 1).
const (
	classNVMe    = 0x0108
	classNetwork = 0x02
	classDisplay = 0x03
	classBridge  = 0x0604
	classCo      = 0x0b40
	classAccel   = 0x12
)

func (d *device) bridge() bool { return d.class>>8 == classBridge }

// wanted reports whether a device moves bulk data: it is a NIC, a GPU or an NVMe controller.
func (d *device) wanted() bool { return d.nic() || d.gpu() || d.class>>8 == classNVMe }

func (d *device) nic() bool { return d.class>>16 == classNetwork }

// gpu reports whether the device is a GPU or another accelerator, or a vnic guest's ivshmem-plain.
func (d *device) gpu() bool {
	return d.vendor == 0x1af4 && d.device == 0x1110 || d.class>>16 == classDisplay || d.class>>16 == classAccel ||
		d.class>>8 == classCo
}

// nodes makes a tree's nodes: the endpoints that move bulk data, the switches above them, and a socket for each root
// bus. A root port or downstream port is no node, but a property of the node below it. Functions of one device count
// as devices below separate ports.
func (r *reader) nodes(cpu pcie.Routing) ([]pcie.Node, error) {
	var ends []*device
	for _, d := range r.devices {
		if d.wanted() && !d.bridge() {
			ends = append(ends, d)
		}
	}
	slices.SortFunc(ends, func(a, b *device) int { return cmp.Compare(a.name, b.name) })
	var nodes []pcie.Node
	made := make(map[string]bool)
	add := func(n pcie.Node) {
		if !made[n.Name] {
			made[n.Name] = true
			nodes = append(nodes, n)
		}
	}
	for _, d := range ends {
		chain := []*device{d} // with the bridges above it
		for up := r.above(d); up != nil; up = r.above(up) {
			if chain = append(chain, up); len(chain) > len(r.devices) {
				return nil, fmt.Errorf("%s is below itself", d.name)
			}
		}
		root := chain[len(chain)-1]
		socket := fmt.Sprintf("pci%04x:%02x", root.loc.segment, root.loc.bus)
		add(pcie.Node{Name: socket, Kind: pcie.Socket, Routing: max(cpu, r.routing(root)), NUMA: root.numa})
		slices.Reverse(chain)
		below, redirect := socket, false
		for level, b := range chain {
			if b.bridge() && level%2 == 0 {
				acs, err := r.redirects(b.name)
				if err != nil {
					return nil, err
				}
				redirect = acs
				continue
			}
			n := pcie.Node{Name: b.name, Kind: pcie.Endpoint, Below: below, Link: b.link(), Redirect: redirect}
			if b.bridge() {
				n.Kind = pcie.Switch
			}
			add(n)
			below, redirect = b.name, false
		}
		r.list(d)
	}
	return nodes, nil
}

func (r *reader) above(d *device) *device {
	if d.up == nil {
		return nil
	}
	return r.devices[d.up.String()]
}

func (r *reader) list(d *device) {
	e := Device{Name: d.name, Vendor: uint16(d.vendor), Device: uint16(d.device)}
	switch {
	case d.nic():
		for _, below := range []string{"net/*", "virtio*/net/*"} {
			if names, _ := filepath.Glob(filepath.Join(r.path(d.name), below)); len(names) > 0 { // valid pattern: no error
				e.Interface = filepath.Base(names[0])
			}
		}
		r.machine.NICs = append(r.machine.NICs, e)
	case d.gpu():
		r.machine.GPUs = append(r.machine.GPUs, e)
	}
}

func (r *reader) path(name string) string { return filepath.Join(r.sys, "bus/pci/devices", name) }

// routing returns the listed routing for the host bridge of a root bus, by the first device on the bus
// (pci_host_bridge_dev).
func (r *reader) routing(root *device) pcie.Routing {
	var first *device
	for _, d := range r.devices {
		if d.up == nil && d.loc.segment == root.loc.segment && d.loc.bus == root.loc.bus &&
			(first == nil || d.name < first.name) {
			first = d
		}
	}
	if first.vendor == intel && (first.bridge() || first.loc.device == 0 && first.loc.function == 0) {
		return listed[first.device]
	}
	return pcie.NoRouting
}

// link returns the current generation and width of the device's link; zero: unknown.
func (d *device) link() pcie.Link {
	for gen := range 6 {
		known := pcie.Link{Gen: gen + 1, Width: int(d.width)}
		if _, err := pcie.ParseLink(known.String()); err == nil && known.Transfers() == d.speed {
			return known
		}
	}
	return pcie.Link{}
}

// redirects reports whether a port's Access Control Services redirect (pci_bridge_has_acs_redir). If at most
// 64 bytes of configuration space can be read, it clears ACSKnown and returns false.
func (r *reader) redirects(name string) (bool, error) {
	const readable = 64 // bytes that every user may read
	config, err := os.ReadFile(filepath.Join(r.path(name), "config"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, fs.ErrPermission) {
		return false, err
	}
	if len(config) <= readable {
		r.machine.ACSKnown = false
		return false, nil
	}
	return acsRedirects(config), nil
}
