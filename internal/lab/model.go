package lab

import (
	"cmp"
	"context"
	"log/slog"
	"net"
	"time"

	"vnic.dev/vnic/dma"
	"vnic.dev/vnic/internal/control"
	"vnic.dev/vnic/internal/lab/pcie"
	"vnic.dev/vnic/internal/nic"
	"vnic.dev/vnic/internal/nic/flows"
	"vnic.dev/vnic/internal/nic/gve"
	"vnic.dev/vnic/internal/nic/virtio"
	"vnic.dev/vnic/vfiouser"
	"vnic.dev/vnic/vfiouser/pci"
)

// Device models of a NIC.
const (
	Virtio = "virtio" // driven by vnic's guest program, or by any virtio-net driver
	GVE    = "gve"    // driven by gve in the guest's kernel
)

// Bounds and a default of a NIC's settings.
const (
	MaxQueuePairs = 16
	MinMTU        = 576               // every IPv4 host must accept datagrams of this size (RFC 791)
	DefaultFlows  = flows.DefaultRows // default of --flows (Options.Flows)
	MaxFlows      = flows.MaxRows
	MaxRSCUsecs   = int(nic.MaxHold / time.Microsecond)
)

// Model has the properties in which the two device models differ.
type Model struct {
	Name       string // Virtio or GVE
	Kernel     bool   // vnic's guests use their kernel's driver and TCP
	Node       bool   // GPU memory is a NUMA node, not BAR 2 of an ivshmem device
	VFIOUser   bool   // the NIC's protocol is vfio-user, not vhost-user
	QueuePairs int    // default of NIC.QueuePairs
	MaxMTU     int

	sent, received descriptors

	open func(files *dma.Files, c nic.Config, g *Guest, n *NIC) (device, error)
}

// descriptors is the size in bytes of ring entries for each buffer and each packet.
type descriptors struct{ buffer, packet float64 }

// For virtio: a descriptor with its entry in the available ring, and a used element (Virtual I/O Device 1.2,
// 2.7.5 to 2.7.8). For gve: descriptors and completions of DQO queues
// (drivers/net/ethernet/google/gve/gve_desc_dqo.h).
var models = map[string]Model{
	Virtio: {Name: Virtio, QueuePairs: 2, MaxMTU: 65535 - 14, open: newVirtio,
		sent: descriptors{16 + 2, 8}, received: descriptors{16 + 2, 8}},
	GVE: {Name: GVE, Kernel: true, Node: true, VFIOUser: true, QueuePairs: 4, MaxMTU: 9198, open: newGVE,
		sent: descriptors{16, 8}, received: descriptors{32, 32}},
}

// LookupModel returns the model with this name.
func LookupModel(name string) (m Model, known bool) {
	m, known = models[name]
	return m, known
}

// Drivers of a guest's GPUs (Guest.Driver).
const (
	// No driver: GPU memory is a NUMA node for a gVNIC, and a PCI BAR for a virtio NIC.
	DriverNode    = "node"
	DriverVNICGPU = "vnicgpu" // the driver in guest-images/vnicgpu: GPU memory is a PCI BAR
)

// With returns the model for a guest whose GPUs have this driver.
func (m Model) With(driver string) Model {
	m.Node = m.Node && driver != DriverVNICGPU
	return m
}

// ModelOf returns the model of a guest's NIC, with the guest's GPU driver.
func (g *Guest) ModelOf(n *NIC) Model {
	m, _ := LookupModel(n.Model)
	return m.With(g.Driver)
}

// gpuInfo returns how a guest finds a GPU: as BAR 2 of an ivshmem-plain (1af4:1110), or, if m.Node is set, as a NUMA
// node, whose number is in the parameter node.
func (m Model) gpuInfo(node int) control.GPUInfo {
	info := control.GPUInfo{DevFn: 0xff, Attach: control.AttachBAR, BAR: 2, Vendor: 0x1af4, Device: 0x1110, Node: 0xff}
	if m.Node {
		info.Attach, info.BAR, info.Vendor, info.Device, info.Node = control.AttachNode, 0, 0, 0, uint8(node)
	}
	return info
}

type device interface {
	Port() *nic.Port
	Space() *dma.Space
	Serve(ctx context.Context, conn *net.UnixConn) error
	Close()
}

// express returns the link of the NIC's slot, or defaultLink if the slot has none; zero in a guest without sockets.
func express(g *Guest, n *NIC) pcie.Link {
	if len(g.Sockets) == 0 {
		return pcie.Link{}
	}
	return cmp.Or(n.Slot.Link, defaultLink)
}

// defaultLink is the result of express for a slot without a link.
var defaultLink = pcie.Link{Gen: 3, Width: 16}

func newVirtio(files *dma.Files, c nic.Config, _ *Guest, _ *NIC) (device, error) {
	return virtio.New(virtio.Config{Files: files, Port: c})
}

type gveDevice struct {
	*gve.Device
	log *slog.Logger
}

func newGVE(files *dma.Files, c nic.Config, g *Guest, n *NIC) (device, error) {
	o := gve.Options{Port: c, Queues: c.QueuePairs, Timestamps: n.Timestamps}
	if slot := express(g, n); slot.Known() {
		o.Express = pci.Link{Generation: slot.Gen, Lanes: slot.Width}
	}
	d, err := gve.New(o, dma.NewSpace(c.Name, files))
	if err != nil {
		return nil, err
	}
	return gveDevice{d, c.Log.With("port", c.Name)}, nil
}

func (d gveDevice) Serve(ctx context.Context, conn *net.UnixConn) error {
	return vfiouser.NewServer(d.Device, d.Space(), d.log).Serve(ctx, conn)
}
