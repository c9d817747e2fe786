package transfer

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"syscall"

	"vnic.dev/vnic/internal/driver"
	"vnic.dev/vnic/internal/kernelnic"
)

// Modules are the kernel modules that a guest needs for a NIC with vnic's driver, besides uio, on which they depend.
var Modules = []string{"uio_pci_generic"}

// HugePages is the number of 2 MiB pages that a guest reserves for each NIC with vnic's driver.
const HugePages = 24

// SetupArgs are the arguments of Remote.Setup.
type SetupArgs struct {
	// Interface is the NIC's PCI address or, if Kernel, its interface's name; "": the only NIC. Without Kernel, if an open
	// Node was set up with the same Interface, Setup adds a Node of that NIC: the other arguments have no effect, and the
	// added Node must be closed before the first.
	Interface string `json:"interface,omitempty"`
	// Kernel means that the kernel drives the NIC and provides device memory TCP; else vnic's driver and stack do.
	Kernel     bool           `json:"kernel,omitempty"`
	Addrs      []netip.Prefix `json:"addrs"`
	Gateways   []netip.Addr   `json:"gateways,omitempty"` // default routes, at most one per family
	MTU        int            `json:"mtu"`
	QueuePairs int            `json:"queue_pairs"`
	// HostQueues is how many receive queues, from queue 0 on, are for ordinary traffic; the others can be bound. 0 is 1,
	// but with Kernel the kernel's setting.
	HostQueues int    `json:"host_queues"`
	Window     uint64 `json:"window,omitempty"` // Kernel: bytes of GPU memory to allocate
	GPU        *int   `json:"gpu,omitempty"`    // Kernel: the GPU; nil: the first that the guest sees
	Loss       Loss   `json:"loss,omitempty"`
}

// SetupResult is the result of Remote.Setup.
type SetupResult struct {
	MAC        string `json:"mac"`
	QueuePairs int    `json:"queue_pairs"`
	GPUs       []GPU  `json:"gpus"`
}

// GPU is the guest's view of a GPU. With vnic's driver it is a PCI device with all the GPU's memory. With the kernel's
// driver it is the part of the memory that Setup allocated, which lies at the Extents.
type GPU struct {
	ID      int                `json:"id"`
	Size    uint64             `json:"size"`
	PCI     string             `json:"pci,omitempty"`
	Extents []kernelnic.Extent `json:"extents,omitempty"`
}

func openNIC(ctx context.Context, s SetupArgs) (*Node, SetupResult, error) {
	if s.Kernel {
		return openKernel(ctx, s)
	}
	return openPCI(ctx, s)
}

// openKernel opens a NIC that the kernel drives. Each call allocates GPU memory of its own.
func openKernel(ctx context.Context, s SetupArgs) (*Node, SetupResult, error) {
	n, err := kernelnic.Open(ctx, kernelnic.Options{Interface: s.Interface, Addrs: s.Addrs, Gateways: s.Gateways,
		MTU: s.MTU, Window: s.Window, GPU: s.GPU, HostQueues: s.HostQueues, Lossless: s.Loss != LinkLoss})
	if err != nil {
		return nil, SetupResult{}, err
	}
	if n.Queues() < s.QueuePairs {
		return nil, SetupResult{}, errors.Join(fmt.Errorf("%d queues of %d: %w", n.Queues(), s.QueuePairs, syscall.ENODEV),
			n.Close())
	}
	w := n.Window()
	r := SetupResult{MAC: n.MAC().String(), QueuePairs: n.Queues(),
		GPUs: []GPU{{ID: int(n.GPU().ID), Size: w.Size(), Extents: w.Extents()}}}
	node := NewNode(n.Device(), n.Engine(), n.Memory(), func() CPU {
		c, _ := ProcStat() // zero after an error
		return c
	})
	node.port = port{control: n.Control(), mac: [6]byte(n.MAC()), register: n.Register}
	return node, r, nil
}

func openPCI(ctx context.Context, s SetupArgs) (*Node, SetupResult, error) {
	n, err := driver.OpenPCI(driver.PCIOptions{Address: s.Interface, Options: driver.Options{QueuePairs: s.QueuePairs,
		HostQueues: s.HostQueues}})
	if err != nil {
		return nil, SetupResult{}, err
	}
	if err := n.IdentifyGPUs(ctx); err != nil {
		return nil, SetupResult{}, errors.Join(err, n.Close())
	}
	r := SetupResult{MAC: n.MAC().String(), QueuePairs: n.QueuePairs()}
	for _, g := range n.GPUs() {
		r.GPUs = append(r.GPUs, GPU{ID: g.ID, Size: g.Size, PCI: g.PCI})
	}
	node, err := Open(n, s.Addrs, s.Gateways, s.MTU, s.Loss, ProcStat)
	return node, r, err
}
