package boot

import (
	"vnic.dev/vnic/internal/broker"
	"vnic.dev/vnic/internal/guestnet"
	"vnic.dev/vnic/internal/lab"
	"vnic.dev/vnic/internal/machine/qemu"
	"vnic.dev/vnic/internal/wire/gateway"
)

// HostPorts is vnic boot's default of --host-ports: guests reach all ports of this machine, as behind QEMU's slirp.
const HostPorts = "all"

// openPorts notes that guests reach all ports of this machine, if they do so because --host-ports is not set.
func (o *Options) openPorts() {
	if g, err := o.Options(guestnet.GuestName, o.Guests, HostPorts); err == nil && g.NAT && o.HostPorts == "" {
		o.Note("guests reach all ports of this machine, loopback too, by the name gateway; --host-ports LIST or none: fewer")
	}
}

// BrokerConfig returns the configuration of the broker, the process outside of the sandbox, for a sandbox's mode.
func (o *Options) BrokerConfig(mode string) (broker.Config, error) {
	g, err := o.Options(guestnet.GuestName, o.Guests, HostPorts)
	return broker.Config{Mode: mode, NAT: g.NAT, Policy: g.Policy, Forwards: g.Forwards, Monitor: qemu.Commands}, err
}

func (o *Options) gateway() ([]lab.Service, error) {
	g, err := o.Options(guestnet.GuestName, o.Guests, HostPorts)
	if err != nil || o.Off() {
		return nil, err
	}
	if o.Broker != nil {
		g.Outside = o.Broker
	}
	for i, guest := range o.describe().Guests {
		d4, d6 := o.devmemAddrs(0, i)
		g.Hosts = append(g.Hosts,
			gateway.Host{Name: guestnet.HostName(i), MAC: guest.NICs[0].MAC, Addr4: lab.Addr4(i).Addr(),
				Addr6: lab.Addr6(i).Addr()},
			gateway.Host{Name: guestnet.DevmemName(i), Addr4: d4.Addr(), Addr6: d6.Addr()}) // no MAC: DHCP does not serve it
	}
	return []lab.Service{lab.Gateway(g)}, nil
}
