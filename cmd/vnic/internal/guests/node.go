package guests

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"strings"
	"time"

	"vnic.dev/vnic/cmd/vnic/internal/broker"
	"vnic.dev/vnic/devmem"
	"vnic.dev/vnic/gpumem"
	"vnic.dev/vnic/internal/agent"
	"vnic.dev/vnic/internal/driver"
	"vnic.dev/vnic/internal/guestnet"
	"vnic.dev/vnic/internal/kernelnic"
	"vnic.dev/vnic/internal/lab"
	"vnic.dev/vnic/internal/machine"
	"vnic.dev/vnic/internal/machine/qemu"
	"vnic.dev/vnic/internal/transfer"
)

// NodeConfig says how a guest takes a NIC.
type NodeConfig struct {
	Port   *lab.Port
	GPU    *gpumem.GPU // the one that is used
	Family int         // 4 or 6
	Bind   int         // receive queues that are to be bound, the last ones
	Loss   transfer.Loss
	Window uint64 // of a node's GPU memory, how much the guest takes: whole huge pages
	Device string // what the guest calls the NIC; "": it has no other
	Number int    // of the transfer.Node in the guest

	Gateways []netip.Addr // default routes, of Family
	Log      *slog.Logger
}

// Addr is the NIC's address in the guest.
func (c *NodeConfig) Addr() netip.Prefix {
	if c.Family == 6 {
		return c.Port.Addr6
	}
	return c.Port.Addr4
}

// UsedPairs is how many of a NIC's queue pairs its guest's driver uses.
func UsedPairs(model string, pairs int) int {
	if model == lab.Virtio {
		return min(pairs, driver.MaxPairs)
	}
	return pairs
}

// Pairs is how many queue pairs the guest uses.
func (c *NodeConfig) Pairs() int { return UsedPairs(c.Port.Model.Name, c.Port.QueuePairs) }

// HostQueues is how many of them carry ordinary traffic.
func (c *NodeConfig) HostQueues() int { return c.Pairs() - c.Bind }

// Queues are those that are to be bound.
func (c *NodeConfig) Queues() (list []int) {
	for q := c.HostQueues(); q < c.Pairs(); q++ {
		list = append(list, q)
	}
	return list
}

// InProcess makes a guest of a driver and a stack in this process, over the same vhost-user socket as QEMU's. The Node
// is the caller's to close.
func InProcess(c NodeConfig) (*transfer.Node, error) {
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

// Setup has a guest in QEMU take a NIC and start its stack. window is where the memory is that it has of a node.
func Setup(ctx context.Context, a *agent.Client, c NodeConfig) (r transfer.Remote, window []kernelnic.Extent,
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

// Locate asks a guest's kernel what it calls these NICs: by their PCI addresses, or by the interface's name where the
// NIC is the kernel's.
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

// BootConfig says how a guest is booted.
type BootConfig struct {
	Memory    uint64 // RAM, in bytes
	CPUs      int    // 0: 1
	TimeLimit time.Duration
	Console   io.Writer    // gets the console; may be nil
	Gate      *broker.Gate // where it waits until all are there; nil: none
	Modules   []string     // of the Images', those that it loads; nil: all
	Disks     []qemu.Disk
	Accel     qemu.Accel
	Log       *slog.Logger
}

// Boot boots a guest, which lives as long as ctx, at most until it is closed.
func Boot(ctx context.Context, im *machine.Images, hw *lab.Machine, b BootConfig) (*machine.Guest, error) {
	c := machine.Config{Name: "guest " + hw.Name, Agent: agent.Config{Hostname: "vnic-" + strings.ToLower(hw.Name)},
		RAMSize: b.Memory, CPUs: b.CPUs, Log: b.Log, Console: b.Console, TimeLimit: b.TimeLimit, Disks: b.Disks,
		Accel: b.Accel}
	c.Agent.Modules = b.Modules
	if b.Gate != nil {
		c.Started = b.Gate.Pass
	}
	return im.Boot(ctx, hw, c)
}
