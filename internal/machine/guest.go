package machine

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"slices"
	"strings"
	"time"

	"vnic.dev/vnic/dma"
	guestimages "vnic.dev/vnic/guest-images"
	"vnic.dev/vnic/internal/agent"
	"vnic.dev/vnic/internal/lab"
	"vnic.dev/vnic/internal/limits"
	"vnic.dev/vnic/internal/machine/qemu"
)

// Config has the settings of a guest.
type Config struct {
	// Boot sets QEMU, Kernel, Cache and Initrd, and adds the hardware; Append follows the NICs' kernel arguments.
	qemu.Config
	// Boot completes it from the hardware and limits.Slow. If Modules is nil, it takes the Images' Modules. vnicgpu is
	// then in Modules exactly if it is the driver of the machine's GPUs.
	Agent agent.Config
	Files io.Reader // a user's initramfs archive, after the image; may be nil
	// Connected gets QEMU's connections to NICs; nil: the lab's ports get them.
	Connected func(p *lab.Port, conn *net.UnixConn)
}

// Guest is a booted machine.
type Guest struct {
	*qemu.Machine
	gone bool // Gone has reported its end
}

// Boot boots a guest with the hardware of a lab's machine. The guest ends with ctx, or by Close.
func (im *Images) Boot(ctx context.Context, hw *lab.Machine, c Config) (*Guest, error) {
	conf := c.Config
	conf.QEMU, conf.Kernel, conf.Cache, conf.Append = im.QEMU, im.Kernel, im.Cache, ""
	a := c.Agent
	if a.Modules == nil {
		a.Modules = im.Modules
	}
	driven := map[string]int{} // by model: NICs with a GPU
	var models []string
	for _, p := range hw.Ports {
		if !slices.Contains(models, p.Model.Name) {
			models = append(models, p.Model.Name)
		}
		if p.GPU() != nil {
			driven[p.Model.Name]++
		}
	}
	for _, model := range models {
		s := SoftwareFor(model)
		conf.Append = strings.TrimSpace(conf.Append + " " + s.KernelArgs)
		a.HugePages += s.HugePages * max(1, driven[model])
	}
	conf.Append = strings.TrimSpace(conf.Append + " " + c.Append)
	Attach(&conf, hw)
	if c.Connected != nil {
		for i, p := range hw.Ports {
			conf.Netdevs[i].Connected = func(conn *net.UnixConn) { c.Connected(p, conn) }
		}
	}
	if several(hw) {
		a.Sysctl = map[string]string{"net.ipv4.conf.all.arp_ignore": "1", "net.ipv4.conf.all.arp_announce": "2"}
		maps.Copy(a.Sysctl, c.Agent.Sysctl)
	}
	a.Node0 = slices.ContainsFunc(hw.Ports, func(p *lab.Port) bool { return p.Model.Node })
	a.Modules = slices.DeleteFunc(slices.Clone(a.Modules), func(m string) bool { return m == guestimages.GPUModule })
	if hw.Driver == lab.DriverVNICGPU {
		a.Modules = append(a.Modules, guestimages.GPUModule)
	}
	if n := limits.Slow(); n > 1 {
		a.Slow = n
	}
	initrd, err := im.Initrd(a)
	if err != nil {
		return nil, err
	}
	defer func() { _ = initrd.Close() }()
	conf.Initrd = []io.Reader{initrd}
	if c.Files != nil {
		conf.Initrd = append(conf.Initrd, c.Files)
	}
	m, err := qemu.Start(ctx, conf)
	if err != nil {
		return nil, err
	}
	if limits.Slow() > max(a.Slow, 1) { // Slow rose after the initramfs was made
		if err := agent.TellSlow(ctx, m.Agent()); err != nil {
			return nil, errors.Join(fmt.Errorf("%s: %w", c.Name, err), m.Close())
		}
	}
	if err := hw.SetMemory(memoryOf(m)); err != nil {
		return nil, errors.Join(fmt.Errorf("memory of %s: %w", c.Name, err), m.Close())
	}
	hw.SetGuest(func(f *lab.GuestFaults) { f.RemoveNIC, f.RemoveGPU = m.UnplugNIC, m.UnplugGPU })
	return &Guest{Machine: m}, nil
}

// memoryOf returns a guest's memory by physical address.
func memoryOf(m *qemu.Machine) (maps []dma.Map) {
	for _, x := range m.Physical() {
		maps = append(maps, dma.Map{IOVA: x.Addr, Size: x.Size, FD: int(x.File.Fd()), FileOffset: x.Off})
	}
	return maps
}

// Attach adds the hardware of a lab's machine (PCIe tree, unless hw.Bare; IOMMU, GPUs and NICs) to QEMU's
// configuration.
func Attach(c *qemu.Config, hw *lab.Machine) {
	if !hw.Bare {
		c.Tree = hw.Tree
	}
	if hw.Driver == lab.DriverVNICGPU {
		c.ForwardsP2P = lab.Forwards(hw.Tree)
	}
	c.IOMMU = hw.IOMMU
	for _, g := range hw.GPUs {
		c.GPUs = append(c.GPUs, qemu.GPU{File: g.File, Size: g.Size(), Node: g.Node, Place: g.Place,
			Hotplug: g.Hotplug})
	}
	for _, p := range hw.Ports {
		n := Netdev(p)
		n.Connected, n.Place, n.Hotplug = p.Connected, p.Place, p.Hotplug
		c.Netdevs = append(c.Netdevs, n)
	}
}

// Netdev returns QEMU's network device for a port, without backend, Place and Hotplug.
func Netdev(p *lab.Port) qemu.Netdev {
	return qemu.Netdev{VFIOUser: p.Model.VFIOUser, Queues: p.QueuePairs, MAC: net.HardwareAddr(p.MAC[:]), MTU: p.MaxMTU,
		XDP: p.XDP}
}

// several reports whether the guest's kernel may have several interfaces. Each must answer only for its own addresses
// (Linux Documentation/networking/ip-sysctl.rst, arp_ignore and arp_announce).
func several(hw *lab.Machine) bool {
	return len(hw.Ports) > 1 && slices.ContainsFunc(hw.Ports, func(p *lab.Port) bool { return p.Model.Kernel })
}

// Gone returns nil while the guest and its agent run. Otherwise it closes the guest, and returns why the guest ended.
// If the guest powered off, the error contains while, which says what the run was doing.
func (g *Guest) Gone(while string) error {
	if !g.Ended() {
		return nil
	}
	select { // QEMU's end is noticed a moment after the agent's
	case <-g.Done():
	case <-time.After(limits.GuestEnd.Here()):
	}
	g.gone = true
	if err := g.Machine.Close(); err != nil {
		return err
	}
	return &qemu.RunError{Name: g.Name(), Err: errors.New("powered off " + while)}
}

// Ended reports whether the guest or its agent has ended.
func (g *Guest) Ended() bool {
	select {
	case <-g.Done():
	case <-g.Agent().Done():
	default:
		return false
	}
	return true
}

// Close ends the guest. After an error of Gone it returns nil.
func (g *Guest) Close() error {
	err := g.Machine.Close()
	if g.gone {
		return nil
	}
	return err
}
