package devmemtool

import (
	"context"
	"errors"
	"net/netip"
	"strings"

	"vnic.dev/vnic/devmem"
	"vnic.dev/vnic/devmem/plain"
	"vnic.dev/vnic/internal/driver"
	"vnic.dev/vnic/internal/engine"
	"vnic.dev/vnic/internal/kernelnic"
	"vnic.dev/vnic/stack"
)

// Open opens a virtio network device of vnic's on the PCI bus, with vnic's driver and stack, if r.Interface is virtio
// or a PCI address; else a network interface of the kernel, whose NIC is vnic's.
func Open(ctx context.Context, r Request) (*Device, error) {
	if r.Interface != "virtio" && !strings.Contains(r.Interface, ":") {
		return openKernel(ctx, r)
	}
	o := driver.PCIOptions{Options: driver.Options{HostQueues: 1}}
	if r.Interface != "virtio" {
		o.Address = r.Interface
	}
	n, err := driver.OpenPCI(o)
	if err != nil {
		return nil, err
	}
	if err := n.IdentifyGPUs(ctx); err != nil {
		return nil, errors.Join(err, n.Close())
	}
	return attach(n, r.Interface, r.Address)
}

func openKernel(ctx context.Context, r Request) (*Device, error) {
	n, err := kernelnic.Open(ctx, kernelnic.Options{Interface: r.Interface, Addrs: []netip.Prefix{r.Address},
		Window: numPages * devmem.PageSize, Guard: !r.Unguarded})
	if err != nil {
		return nil, err
	}
	w := n.Window()
	return &Device{Device: n.Device(), Name: r.Interface, Queues: n.Queues(), Shared: true,
		GPUs:   []GPU{{ID: int(n.GPU().ID), Size: w.Size()}},
		Memory: plain.MapMemory(w.Bytes)}, nil
}

// attach starts a stack on a NIC, and takes ownership of the NIC, even after an error.
func attach(n *driver.NIC, name string, addr netip.Prefix) (*Device, error) {
	s, err := stack.New(n, n.Control(), stack.Options{Addresses: []netip.Prefix{addr}})
	if err != nil {
		return nil, errors.Join(err, n.Close())
	}
	return &Device{Device: s, Name: name, Queues: n.QueuePairs(), GPUs: n.GPUs(), Memory: engine.New(n.Control(), n)}, nil
}
