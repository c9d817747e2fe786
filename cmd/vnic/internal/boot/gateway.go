package boot

import (
	"vnic.dev/vnic/guest-images/guestnet"
	"vnic.dev/vnic/lab"
	"vnic.dev/vnic/stack/gateway"
)

// gateway is a router among the lab's services, unless there is to be none.
func (o *Options) gateway() ([]lab.Service, error) {
	if o.NoGateway {
		return nil, nil
	}
	g := gateway.Options{NAT: true, Policy: gateway.Policy{HostPorts: gateway.AllPorts}}
	for i := range o.Guests {
		d4, d6 := o.devmemAddrs(i)
		g.Hosts = append(g.Hosts,
			gateway.Host{Name: guestnet.HostName(i), MAC: lab.MAC(i), Addr4: lab.Addr4(i).Addr(), Addr6: lab.Addr6(i).Addr()},
			gateway.Host{Name: guestnet.DevmemName(i), Addr4: d4.Addr(), Addr6: d6.Addr()}) // DHCP is not for it
	}
	for _, s := range o.Forwards {
		f, err := lab.ParseForward(s, guestnet.GuestName, o.Guests)
		if err != nil {
			return nil, err
		}
		g.Forwards = append(g.Forwards, f)
	}
	return []lab.Service{lab.Gateway(g)}, nil
}
