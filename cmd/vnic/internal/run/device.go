package run

import (
	"context"
	"log/slog"
	"net"

	"vnic.dev/vnic/control"
	"vnic.dev/vnic/dma"
	"vnic.dev/vnic/guest-images/kernelnic"
	"vnic.dev/vnic/guest-images/transfer"
	"vnic.dev/vnic/nic"
	"vnic.dev/vnic/nic/gve"
	"vnic.dev/vnic/nic/virtio"
	"vnic.dev/vnic/qemu"
	"vnic.dev/vnic/vfiouser"
)

// Personalities of the NIC.
const (
	NICVirtio = "virtio" // our driver and stack in the guests
	NICGVE    = "gve"    // the kernel's
)

// device is a NIC of either personality.
type device interface {
	Port() *nic.Port
	Space() *dma.Space
	Serve(ctx context.Context, conn *net.UnixConn) error
	Close()
}

// personality is what a run needs to know of a NIC: how the guest is to be made for it.
type personality struct {
	modules   []string
	hugePages int
	append    string // to the kernel's command line
	node      bool   // GPU memory is a NUMA node's
	vfioUser  bool
	queues    int // queue pairs, unless more are to be bound
}

var personalities = map[string]personality{
	NICVirtio: {modules: transfer.Modules, hugePages: transfer.HugePages, queues: 2},
	NICGVE: {modules: kernelnic.Modules, hugePages: kernelnic.HugePages, append: kernelnic.KernelArgs, node: true, vfioUser: true,
		queues: 4},
}

func (o *Options) personality() personality { return personalities[o.NIC] }

// queuePairs of each NIC: the last are to be bound, and the first, at least one, carry ordinary traffic.
func (o *Options) queuePairs() int { return max(o.personality().queues, o.BindQueues+1) }

// hostQueues is how many queues carry ordinary traffic.
func (o *Options) hostQueues() int { return o.queuePairs() - o.BindQueues }

// bound lists the queues to be bound.
func (o *Options) bound() (queues []int) {
	for q := o.hostQueues(); q < o.queuePairs(); q++ {
		queues = append(queues, q)
	}
	return queues
}

func (o *Options) newDevice(files *dma.Files, c nic.Config) (device, error) {
	for i := range c.GPUs {
		info := &c.GPUs[i].Info
		info.Attach, info.BAR, info.Vendor, info.Device, info.DevFn, info.Node = control.AttachBAR, 2, 0x1af4, 0x1110, 0xff, 0xff
		if o.personality().node {
			info.Attach, info.BAR, info.Vendor, info.Device, info.Node = control.AttachNode, 0, 0, 0, uint8(i+1)
		}
	}
	if o.NIC == NICGVE {
		return newGVE(files, c)
	}
	return virtio.New(virtio.Config{Files: files, Port: c})
}

// gveDevice is a gVNIC behind vfio-user.
type gveDevice struct {
	*gve.Device
	log *slog.Logger
}

func newGVE(files *dma.Files, c nic.Config) (device, error) {
	d, err := gve.New(gve.Options{Port: c, Queues: c.QueuePairs}, dma.NewSpace(c.Name, files))
	if err != nil {
		return nil, err
	}
	return gveDevice{d, c.Log}, nil
}

// Serve speaks vfio-user.
func (d gveDevice) Serve(ctx context.Context, conn *net.UnixConn) error {
	return vfiouser.NewServer(d.Device, d.Space(), d.log).Serve(ctx, conn)
}

// hardware is what QEMU is to give the guest.
func (e *end) hardware(c *qemu.Config) {
	p := e.opt.personality()
	c.Append = p.append
	c.GPUs[0].Node = p.node
	c.Netdevs = []qemu.Netdev{{Connected: e.serve, VFIOUser: p.vfioUser, Queues: e.opt.queuePairs(), MAC: net.HardwareAddr(e.mac[:]),
		MTU: e.opt.MTU, RXQueueSize: 1024, TXQueueSize: 1024}}
}
