package boot

import (
	"cmp"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"strings"

	"vnic.dev/vnic/internal/guestnet"
	"vnic.dev/vnic/internal/lab"
	"vnic.dev/vnic/internal/lab/labfile"
	"vnic.dev/vnic/internal/wire"
	"vnic.dev/vnic/internal/wire/gateway"
)

// place has a guest's ports.
type place struct {
	index  int
	name   string // "guest0", or the name in the lab file
	hw     *lab.Machine
	kernel *lab.Port   // the kernel's first NIC
	devmem []*lab.Port // NICs for devmem programs; the kernel drives the gVNICs among them
}

// devmemAddrs returns the addresses of guest i's devmem programs on its NIC of number rail: the lab file's if they
// differ from the NIC's defaults (labfile.Addrs), or else such as the kernel does not use.
func (o *Options) devmemAddrs(rail, i int) (v4, v6 netip.Prefix) {
	v4, v6 = labfile.Addrs(rail, guestnet.DevmemHost+i)
	if o.Lab != nil {
		given4, given6 := o.Lab.Given(i, rail)
		v4, v6 = cmp.Or(given4, v4), cmp.Or(given6, v6)
	}
	return v4, v6
}

// interfaceAddrs lists the addresses of a NIC that the kernel drives. The kernel's first NIC also has the
// addresses for the guest's names.
func (o *Options) interfaceAddrs(p place, port *lab.Port) []netip.Prefix {
	list := []netip.Prefix{port.Addr4, port.Addr6}
	if port == p.kernel {
		for _, prefix := range []netip.Prefix{lab.Addr4(p.index), lab.Addr6(p.index)} {
			if !slices.Contains(list, prefix) {
				list = append(list, prefix)
			}
		}
	}
	return list
}

// describe returns the description of the lab. A guest whose first NIC devmem programs drive gets one more, for its
// kernel.
func (o *Options) describe() (d lab.Description) {
	if o.Lab != nil {
		d = o.describeLab()
	} else {
		d = o.describeFlags()
		d.Impair(o.Impair)
	}
	d.Identify(o.AllowMAC, false)
	return d
}

func (o *Options) describeFlags() (d lab.Description) {
	for i := range o.Guests {
		g := lab.Guest{Name: guestnet.HostName(i), Driver: o.GPUDriver, IOMMU: o.IOMMU,
			NICs: []lab.NIC{o.kernelNIC(i)}}
		g.NICs[0].Name, g.NICs[0].MAC = guestnet.HostName(i), lab.MAC(i)
		if o.ownNIC(i) {
			g.NICs[0].GPUs = []int{}
			n := guestnet.DevmemHost + i
			options := o.NICOptions
			options.MaxMTU, options.XDP = 0, false // vnic's driver has neither
			g.NICs = append(g.NICs, lab.NIC{Name: guestnet.DevmemName(i), Model: o.NIC, MAC: lab.MAC(n), Addr4: lab.Addr4(n),
				Addr6: lab.Addr6(n), NICOptions: options})
		}
		if o.GPUMemory != 0 {
			g.GPUs = []lab.GPU{{Memory: o.GPUMemory}}
		}
		d.Guests = append(d.Guests, g)
	}
	return d
}

// kernelNIC returns a NIC for guest i's kernel. With Lab it is one that the file lacks, and takes the file's XDP and
// MaxMTU.
func (o *Options) kernelNIC(i int) lab.NIC {
	n := lab.NIC{Model: o.NIC, Addr4: lab.Addr4(i), Addr6: lab.Addr6(i), NICOptions: o.NICOptions}
	if o.Lab != nil {
		n.Model = lab.Virtio
		for _, other := range o.Lab.Guests[i].NICs {
			n.XDP = n.XDP || other.XDP
			if other.MaxMTU > max(other.MTU, n.MTU, n.MaxMTU) {
				n.MaxMTU = other.MaxMTU
			}
		}
	}
	return n
}

// describeLab returns the description of the lab file's lab. A guest whose first NIC is virtio gets one more,
// for its kernel, on the root complex.
func (o *Options) describeLab() lab.Description {
	d := o.Lab.Complete()
	for i := range d.Guests {
		g := &d.Guests[i]
		for j := range g.NICs {
			if !kernels(g.NICs[j].Model) {
				g.NICs[j].MaxMTU = g.NICs[j].MTU // vnic's driver cannot raise the MTU
				g.NICs[j].Addr4, g.NICs[j].Addr6 = o.devmemAddrs(j, i)
			}
		}
		if !o.ownNIC(i) {
			continue
		}
		n := o.kernelNIC(i)
		n.Name, n.MAC, n.GPUs = g.Name+".kernel.eth0", o.freeMAC(i), []int{}
		g.NICs = append([]lab.NIC{n}, g.NICs...)
	}
	return d
}

// freeMAC returns a MAC for the kernel's NIC of guest i that no NIC of the file has.
func (o *Options) freeMAC(i int) wire.MAC {
	given := make(map[wire.MAC]bool)
	for n := range o.Lab.AllNICs() {
		given[n.MAC] = true
	}
	for k := lab.MaxPorts - 1; ; k-- { // ends: the file has at most MaxPorts NICs, and lab.MAC 256 addresses
		if m := lab.MAC(k); !given[m] {
			if i == 0 {
				return m
			}
			i--
		}
	}
}

func (o *Options) places(l *lab.Lab) (list []place) {
	for i, m := range l.Machines() {
		p := place{index: i, name: m.Name, hw: m, kernel: m.Ports[0], devmem: m.Ports}
		if o.ownNIC(i) {
			p.devmem = m.Ports[1:]
		}
		list = append(list, p)
	}
	return list
}

// reserve is a service of the lab: it reserves the guests' addresses for their ports.
func (o *Options) reserve(l *lab.Lab) (io.Closer, error) {
	for i, p := range o.places(l) {
		for _, a := range o.interfaceAddrs(p, p.kernel) {
			p.kernel.Reserve(a.Addr())
		}
		for j, port := range p.devmem {
			v4, v6 := o.devmemAddrs(j, i)
			port.Reserve(port.Addr4.Addr(), port.Addr6.Addr(), v4.Addr(), v6.Addr())
		}
	}
	return io.NopCloser(nil), nil
}

func (o *Options) network(p place) guestnet.Config {
	var c guestnet.Config
	for _, port := range p.hw.Ports {
		if port != p.kernel && !port.Model.Kernel {
			c.Interfaces = append(c.Interfaces, guestnet.Interface{MAC: mac(port), Leave: true})
			continue
		}
		c.Interfaces = append(c.Interfaces, guestnet.Interface{MAC: mac(port), MTU: port.MTU,
			Addrs: o.interfaceAddrs(p, port)})
	}
	host := func(v4, v6 netip.Prefix, names ...string) {
		c.Hosts = append(c.Hosts, guestnet.Host{Addr: v4.Addr(), Names: names},
			guestnet.Host{Addr: v6.Addr(), Names: names})
	}
	for i := range o.Guests {
		host(lab.Addr4(i), lab.Addr6(i), o.names(i)...)
		for rail, names := range o.devmemNames(i) {
			v4, v6 := o.devmemAddrs(rail, i)
			host(v4, v6, names...)
		}
	}
	if !o.Off() {
		v4, v6 := lab.GatewayAddrs()
		c.DNS = []netip.Addr{v4.Addr()}
		if o.Gateway != lab.GatewayIsolated {
			c.Gateways = []netip.Addr{v4.Addr(), v6.Addr()}
		}
		host(v4, v6, gateway.GatewayName)
	}
	return c
}

func (o *Options) names(i int) []string {
	names := []string{guestnet.HostName(i)}
	if o.Lab != nil && o.Lab.Guests[i].Name != names[0] {
		names = append(names, o.Lab.Guests[i].Name)
	}
	return names
}

func (o *Options) devmemNames(i int) (rails [][]string) {
	if o.Lab == nil {
		return [][]string{{guestnet.DevmemName(i)}}
	}
	for _, n := range o.Lab.Guests[i].NICs {
		names := []string{n.Name}
		if len(rails) == 0 {
			names = append(names, guestnet.DevmemName(i))
		}
		rails = append(rails, names)
	}
	return rails
}

func (o *Options) machine(i int) labfile.Machine {
	if o.Lab != nil {
		return o.Lab.Machines[i]
	}
	return labfile.Machine{RAM: o.Memory, CPUs: o.CPUs}
}

// local returns a device's name for the guest's programs: the lab file's without the guest's name, or kind
// and number.
func (p *place) local(kind string, number int, name string) string {
	if local, ok := strings.CutPrefix(name, p.name+"."); ok {
		return local
	}
	return fmt.Sprint(kind, number)
}

// entry is a device in $VNIC_DEVICES.
type entry struct {
	name         string // "nic0", or the name in the lab file
	device       string // interface of a gVNIC, PCI address of a virtio NIC
	addr4, addr6 netip.Prefix
}

func (e entry) String() string { return fmt.Sprintf("%s=%s,%v,%v", e.name, e.device, e.addr4, e.addr6) }

func (g *guest) devices() (list []entry) {
	o := g.runner.opt
	for j, port := range g.devmem {
		found := g.found(port)
		e := entry{name: g.local("nic", j, port.Name), device: found.PCI}
		if port.Model.Kernel {
			e.device = found.Name
		}
		e.addr4, e.addr6 = o.devmemAddrs(j, g.index)
		list = append(list, e)
	}
	return list
}

// peers returns the words of $VNIC_PEERS, with Lab: for each NIC of the guest NAME=ADDRESS,ADDRESS,..., the IPv4
// addresses of all guests' NICs with the same number, in the order of guests, with - for a guest that has no such NIC.
func (g *guest) peers() (list []string) {
	o := g.runner.opt
	for j, e := range g.devices() {
		addrs := make([]string, len(o.Lab.Guests))
		for i, other := range o.Lab.Guests {
			if addrs[i] = "-"; j < len(other.NICs) {
				v4, _ := o.devmemAddrs(j, i)
				addrs[i] = v4.Addr().String()
			}
		}
		list = append(list, e.name+"="+strings.Join(addrs, ","))
	}
	return list
}

func (g *guest) found(p *lab.Port) guestnet.Found {
	return g.network.Interfaces[slices.Index(g.hw.Ports, p)]
}

func (g *guest) gpus() (list []string) {
	for j, m := range g.hw.GPUs {
		list = append(list, fmt.Sprintf("%s=%d", g.local("gpu", j, m.Name), m.ID()))
	}
	return list
}

func mac(p *lab.Port) string { return net.HardwareAddr(p.MAC[:]).String() }
