package boot

import (
	"net"
	"net/netip"
	"time"

	"vnic.dev/vnic/guest-images/guestnet"
	"vnic.dev/vnic/lab"
	"vnic.dev/vnic/stack/gateway"
)

// place is what a guest has on the switch.
type place struct {
	index  int
	name   string    // "guest0"
	kernel *lab.Port // the kernel's NIC
	devmem *lab.Port // that for devmem programs: another on virtio, the same on gve
}

// devmemAddrs are what the devmem programs of guest i are to have.
func (o *Options) devmemAddrs(i int) (v4, v6 netip.Prefix) {
	return lab.Addr4(guestnet.DevmemHost + i), lab.Addr6(guestnet.DevmemHost + i)
}

// farewell is how long the end of a connection to a QEMU that is gone may take to be seen.
const farewell = 2 * time.Second

// world is what the guests are in: of each guest the kernel's NIC, and on virtio another, which the GPU is at.
func (o *Options) world() lab.Options {
	w := lab.Options{NIC: o.NIC, MTU: o.MTU, GPUMemory: o.GPUMemory, Farewell: farewell, Log: o.Log}
	for i := range o.Guests {
		w.Ports = append(w.Ports, lab.PortOptions{Name: guestnet.HostName(i), MAC: lab.MAC(i), Addr4: lab.Addr4(i), Addr6: lab.Addr6(i),
			NoGPU: !o.node()})
		if !o.node() {
			d := guestnet.DevmemHost + i
			w.Ports = append(w.Ports, lab.PortOptions{Name: guestnet.DevmemName(i), MAC: lab.MAC(d), Addr4: lab.Addr4(d), Addr6: lab.Addr6(d)})
		}
	}
	return w
}

// places says which ports are whose.
func (o *Options) places(w *lab.Lab) (list []place) {
	ports := w.Ports()
	each := len(ports) / o.Guests
	for i := range o.Guests {
		list = append(list, place{index: i, name: guestnet.HostName(i), kernel: ports[i*each], devmem: ports[(i+1)*each-1]})
	}
	return list
}

// network is what the guest is told of it.
func (o *Options) network(p place) guestnet.Config {
	c := guestnet.Config{Interfaces: []guestnet.Interface{{MAC: mac(p.kernel), MTU: o.MTU, Addrs: []netip.Prefix{p.kernel.Addr4, p.kernel.Addr6}}}}
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
	if !o.NoGateway {
		g4, g6 := lab.GatewayAddrs()
		c.Gateways, c.DNS = []netip.Addr{g4.Addr(), g6.Addr()}, []netip.Addr{g4.Addr()}
		for _, a := range c.Gateways {
			c.Hosts = append(c.Hosts, guestnet.Host{Addr: a, Names: []string{gateway.GatewayName}})
		}
	}
	return c
}

func mac(p *lab.Port) string { return net.HardwareAddr(p.MAC[:]).String() }
