package lab

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
	"vnic.dev/vnic/vfiouser"
)

// Personalities of the NIC.
const (
	Virtio = "virtio" // our driver and stack in the guest, or any virtio-net driver
	GVE    = "gve"    // the kernel's
)

const maxQueuePairs = 16 // of either

// Personality is what there is to know of a NIC besides the device itself: what QEMU and a guest of ours are to be given.
type Personality struct {
	Modules    []string // of the kernel, for a guest of ours
	HugePages  int      // of 2 MiB, that a guest of ours sets aside on node 0
	KernelArgs string   // for the guest kernel's command line
	Node       bool     // GPU memory is a NUMA node's; else BAR 2 of an ivshmem device
	VFIOUser   bool     // the transport is vfio-user; else vhost-user
	QueuePairs int      // unless more are asked for
	MaxMTU     int
}

var personalities = map[string]Personality{
	Virtio: {Modules: transfer.Modules, HugePages: transfer.HugePages, QueuePairs: 2, MaxMTU: 65535 - 14},
	GVE: {Modules: kernelnic.Modules, HugePages: kernelnic.HugePages, KernelArgs: kernelnic.KernelArgs, Node: true, VFIOUser: true,
		QueuePairs: 4, MaxMTU: 9198},
}

// Of gives the personality that has a name.
func Of(nic string) (p Personality, known bool) {
	p, known = personalities[nic]
	return p, known
}

// device is a NIC of either personality.
type device interface {
	Port() *nic.Port
	Space() *dma.Space
	Serve(ctx context.Context, conn *net.UnixConn) error
	Close()
}

func newDevice(name string, files *dma.Files, c nic.Config) (device, error) {
	for i := range c.GPUs {
		info := &c.GPUs[i].Info
		info.Attach, info.BAR, info.Vendor, info.Device, info.DevFn, info.Node = control.AttachBAR, 2, 0x1af4, 0x1110, 0xff, 0xff
		if personalities[name].Node {
			info.Attach, info.BAR, info.Vendor, info.Device, info.Node = control.AttachNode, 0, 0, 0, uint8(i+1)
		}
	}
	if name == GVE {
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
