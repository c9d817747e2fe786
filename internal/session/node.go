package session

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"

	"vnic.dev/vnic/devmem"
	"vnic.dev/vnic/gpumem"
	"vnic.dev/vnic/internal/agent"
	"vnic.dev/vnic/internal/driver"
	"vnic.dev/vnic/internal/guestnet"
	"vnic.dev/vnic/internal/kernelnic"
	"vnic.dev/vnic/internal/lab"
	"vnic.dev/vnic/internal/machine/assets"
	"vnic.dev/vnic/internal/transfer"
)

// NodeConfig describes how a guest takes a NIC: sets up a driver and a network stack on it.
type NodeConfig struct {
	Port   *lab.Port
	GPU    *gpumem.GPU
	Family int // 4 or 6
	Bind   int // the guest may bind this many receive queues, the last ones, to GPU memory
	Loss   transfer.Loss
	Window uint64 // if the kernel drives the NIC: bytes of GPU memory that the guest allocates, whole huge pages
	Device string // PCI address or interface name in the guest; "": the guest has no other NIC
	Number int    // of the transfer.Node at the guest's agent; not used for guests in this process

	Gateways []netip.Addr // of the default routes
	Log      *slog.Logger
}

// Addr returns the NIC's address of the family c.Family, with its prefix.
func (c *NodeConfig) Addr() netip.Prefix {
	if c.Family == 6 {
		return c.Port.Addr6
	}
	return c.Port.Addr4
}

// UsedPairs returns how many queue pairs vnic's guests use of a NIC of this model, which has a number of them (pairs).
func UsedPairs(model string, pairs int) int {
	if model == lab.Virtio {
		return min(pairs, driver.MaxPairs)
	}
	return pairs
}

// Pairs returns how many queue pairs of the NIC the guest uses.
func (c *NodeConfig) Pairs() int { return UsedPairs(c.Port.Model.Name, c.Port.QueuePairs) }

// HostQueues returns how many of the guest's queue pairs (Pairs), the first ones, are for ordinary traffic only.
func (c *NodeConfig) HostQueues() int { return c.Pairs() - c.Bind }

// Queues lists the receive queues that the guest may bind to GPU memory.
func (c *NodeConfig) Queues() (list []int) {
	for q := c.HostQueues(); q < c.Pairs(); q++ {
		list = append(list, q)
	}
	return list
}

// Node is a NIC and a GPU that a guest uses together, with its stack on the NIC.
type Node struct {
	*Guest
	Memory // that the guest uses
	Config NodeConfig
	Port   *lab.Port
	Ops    transfer.Guest // nil: the guest has not taken the NIC
	Name   string         // in messages
	P2P    bool           // the NIC addresses the GPU's memory directly

	near *transfer.Node // in this process: the Node in Ops, if Close closes it; else nil
}

// Take makes the guest set up its driver and its network stack on the NIC, and sets Ops. first is the Node that took
// the same NIC first, or nil: a guest in this process then uses first's stack. For one in QEMU, first has no effect.
func (n *Node) Take(ctx context.Context, first *Node) (err error) {
	switch {
	case n.QEMU != nil:
		var r transfer.Remote
		if r, n.Window, err = setup(ctx, n.QEMU.Agent(), &n.Config); err != nil {
			return err
		}
		n.Ops = r
		return checkTranslation(n.HW, n.Port)
	case first != nil:
		n.Ops = first.near.Another()
		return nil
	}
	if n.near, err = inProcess(&n.Config); err == nil {
		n.Ops = n.near
	}
	return err
}

// Close closes the stack and the driver that Take opened in this process. It does nothing for a guest in QEMU, and
// for a Node whose Take used another Node's stack.
func (n *Node) Close() error {
	if n.near == nil {
		return nil
	}
	return n.near.Close()
}

// inProcess starts a driver and a stack in this process, in the place of a guest, and sets the port's Holders.
func inProcess(c *NodeConfig) (*transfer.Node, error) {
	n, err := c.Port.InProcess(driver.Options{QueuePairs: c.Pairs(), HostQueues: c.HostQueues(), Log: c.Log})
	if err != nil {
		return nil, err
	}
	node, err := transfer.Open(n, []netip.Prefix{c.Addr()}, c.Gateways, c.Port.MTU, c.Loss, nil)
	if err == nil {
		c.Port.SetHolders(node.Holders)
	}
	return node, err
}

// setup makes a guest in QEMU set up its driver and its network stack on a NIC, and sets the port's Holders. window is
// nil unless the guest's kernel drives the NIC.
func setup(ctx context.Context, a *agent.Client, c *NodeConfig) (r transfer.Remote, window []kernelnic.Extent,
	err error) {
	r = transfer.Remote{Agent: a, Node: c.Number}
	gpu := c.GPU.ID()
	s := transfer.SetupArgs{Interface: c.Device, Addrs: []netip.Prefix{c.Addr()}, Gateways: c.Gateways, MTU: c.Port.MTU,
		QueuePairs: c.Pairs(), HostQueues: c.HostQueues(), Loss: c.Loss, GPU: &gpu}
	want := c.GPU.Size()
	if c.Port.Model.Kernel {
		s.Kernel, s.Window = true, c.Window
		want = s.Window
	}
	res, err := r.Setup(ctx, s)
	if err != nil {
		return r, nil, err
	}
	i := slices.IndexFunc(res.GPUs, func(g transfer.GPU) bool { return g.ID == gpu && g.Size == want })
	if i < 0 {
		return r, nil, fmt.Errorf("sees GPUs %+v, and not GPU %d of %d bytes", res.GPUs, gpu, want)
	}
	c.Port.SetHolders(func(ctx context.Context) ([]devmem.Holder, error) { return transfer.Holders(ctx, r) })
	return r, res.GPUs[i].Extents, nil
}

// Locate makes a guest's agent bring up these NICs if their Model.Kernel is set, and unbind the others from Linux's
// driver. It returns, in the order of ports, the name of each interface, or the PCI address of an unbound NIC.
func Locate(ctx context.Context, a *agent.Client, ports []*lab.Port) (devices []string, err error) {
	var c guestnet.Config
	for _, p := range ports {
		c.Interfaces = append(c.Interfaces, guestnet.Interface{MAC: net.HardwareAddr(p.MAC[:]).String(),
			Leave: !p.Model.Kernel})
	}
	found, err := guestnet.Apply(ctx, a, c)
	if err != nil {
		return nil, err
	}
	for i, p := range ports {
		name := found.Interfaces[i].PCI
		if p.Model.Kernel {
			name = found.Interfaces[i].Name
		}
		devices = append(devices, name)
	}
	return devices, nil
}

// checkTranslation returns an error if a guest has an IOMMU and its kernel does not translate the NIC's
// addresses.
func checkTranslation(hw *lab.Machine, nic *lab.Port) error {
	if !hw.IOMMU || nic.Translated() {
		return nil
	}
	return &assets.Missing{What: "a kernel that translates addresses",
		Err: fmt.Errorf("guest %s has an IOMMU, and its kernel uses none for %s: guest RAM is mapped as it is", hw.Name,
			nic.Name),
		Fix: "build it with CONFIG_INTEL_IOMMU, and say no iommu=pt"}
}
