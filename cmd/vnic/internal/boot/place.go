package boot

import (
	"io"
	"net"
	"net/netip"

	"vnic.dev/vnic/guest-images/guestnet"
	"vnic.dev/vnic/lab"
	"vnic.dev/vnic/stack/gateway"
)

// place is what a guest has on the switch.
type place struct {
	index  int
	name   string // "guest0"
	hw     *lab.Machine
	kernel *lab.Port // the kernel's NIC
	devmem *lab.Port // that for devmem programs: another on virtio, the same on gve
}

// devmemAddrs are what the devmem programs of guest i are to have.
func (o *Options) devmemAddrs(i int) (v4, v6 netip.Prefix) {
	return lab.Addr4(guestnet.DevmemHost + i), lab.Addr6(guestnet.DevmemHost + i)
}

// describe is the lab that the guests are in: of each the kernel's NIC, and on virtio another, which the GPU is at.
func (o *Options) describe() (d lab.Description) {
	for i := range o.Guests {
		g := lab.Guest{Name: guestnet.HostName(i),
			NICs: []lab.NIC{{Name: guestnet.HostName(i), Model: o.NIC, MAC: lab.MAC(i), Addr4: lab.Addr4(i),
				Addr6: lab.Addr6(i), MTU: o.MTU}}}
		if !o.node() {
			g.NICs[0].GPUs = []int{} // none
			n := guestnet.DevmemHost + i
			g.NICs = append(g.NICs, lab.NIC{Name: guestnet.DevmemName(i), Model: o.NIC, MAC: lab.MAC(n), Addr4: lab.Addr4(n),
				Addr6: lab.Addr6(n), MTU: o.MTU})
		}
		if o.GPUMemory != 0 {
			g.GPUs = []lab.GPU{{Memory: o.GPUMemory}}
		}
		d.Guests = append(d.Guests, g)
	}
	d.Impair(o.Impair)
	d.Identify(o.AllowMAC, false)
	return d
}

// places says which guest has which ports.
func (o *Options) places(l *lab.Lab) (list []place) {
	for i, m := range l.Machines() {
		list = append(list, place{index: i, name: m.Name, hw: m, kernel: m.Ports[0], devmem: m.Ports[len(m.Ports)-1]})
	}
	return list
}

// reserve is a service of the lab: each guest's addresses are its own, before it uses them, too.
func (o *Options) reserve(l *lab.Lab) (io.Closer, error) {
	for i, p := range o.places(l) {
		p.kernel.Reserve(p.kernel.Addr4.Addr(), p.kernel.Addr6.Addr())
		v4, v6 := o.devmemAddrs(i)
		p.devmem.Reserve(v4.Addr(), v6.Addr())
	}
	return io.NopCloser(nil), nil
}

// network is what the guest is told of it.
func (o *Options) network(p place) guestnet.Config {
	c := guestnet.Config{Interfaces: []guestnet.Interface{{MAC: mac(p.kernel), MTU: o.MTU,
		Addrs: []netip.Prefix{p.kernel.Addr4, p.kernel.Addr6}}}}
	if p.devmem != p.kernel {
		c.Interfaces = append(c.Interfaces, guestnet.Interface{MAC: mac(p.devmem), Leave: true})
	}
	for i := range o.Guests {
		for _, a := range []netip.Prefix{lab.Addr4(i), lab.Addr6(i)} {
			c.Hosts = append(c.Hosts, guestnet.Host{Addr: a.Addr(), Names: []string{guestnet.HostName(i)}})
		}
		a4, a6 := o.devmemAddrs(i)
		for _, a := range []netip.Prefix{a4, a6} {
			c.Hosts = append(c.Hosts, guestnet.Host{Addr: a.Addr(), Names: []string{guestnet.DevmemName(i)}})
		}
	}
	if !o.Off() {
		g4, g6 := lab.GatewayAddrs()
		addrs := []netip.Addr{g4.Addr(), g6.Addr()}
		if c.DNS = addrs[:1]; o.Gateway != lab.GatewayIsolated {
			c.Gateways = addrs
		}
		for _, a := range addrs {
			c.Hosts = append(c.Hosts, guestnet.Host{Addr: a, Names: []string{gateway.GatewayName}})
		}
	}
	return c
}

func mac(p *lab.Port) string { return net.HardwareAddr(p.MAC[:]).String() }
