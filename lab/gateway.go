package lab

import (
	"errors"
	"fmt"
	"io"
	"net/netip"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/stack/gateway"
)

// gatewayHost is the last part of the gateway's addresses.
const gatewayHost = 254

// GatewayAddrs are the gateway's addresses: 10.118.110.254/24, fd76:6e69::fe/64.
func GatewayAddrs() (v4, v6 netip.Prefix) { return Addr4(gatewayHost - 1), Addr6(gatewayHost - 1) }

// Gateway is a router, for Options.Services. In o, Hosts and Forwards are the caller's; addresses
// and MTU are filled in. Without Hosts, these are the ports, by their names.
func Gateway(o gateway.Options) Service {
	return func(l *Lab) (io.Closer, error) {
		o := o
		o.MAC, o.MTU, o.Log = MAC(gatewayHost-1), l.MTU(), l.opt.Log
		o.Prefix4, o.Prefix6 = GatewayAddrs()
		if o.Hosts == nil {
			for _, p := range l.ports {
				o.Hosts = append(o.Hosts, gateway.Host{Name: p.Name, MAC: p.MAC, Addr4: p.Addr4.Addr(), Addr6: p.Addr6.Addr()})
			}
		}
		g, err := gateway.New(l.sw, o)
		switch {
		case errors.Is(err, unix.EADDRINUSE), errors.Is(err, unix.EACCES): // a forward's
			return nil, fmt.Errorf("%w: give another port (--forward)", err)
		case err != nil:
			return nil, fmt.Errorf("gateway: %w", err)
		}
		return g, nil
	}
}

// ParseForward reads a forward to one of n guests, whose names are name and a number:
// [tcp:|udp:]HOSTPORT:[NAMEn:]GUESTPORT.
func ParseForward(s, name string, n int) (f gateway.Forward, err error) {
	form := "[tcp:|udp:]HOSTPORT:[" + name + "N:]GUESTPORT"
	f.Proto = "tcp"
	words := strings.Split(s, ":")
	if words[0] == "tcp" || words[0] == "udp" {
		f.Proto, words = words[0], words[1:]
	}
	guest := 0
	if len(words) == 3 {
		i, ok := strings.CutPrefix(words[1], name)
		if guest, err = strconv.Atoi(i); !ok || err != nil || guest < 0 || guest >= n {
			return f, fmt.Errorf("--forward %s: no guest %q: %s", s, words[1], form)
		}
		words = []string{words[0], words[2]}
	}
	if len(words) != 2 {
		return f, errors.New("--forward " + s + ": not " + form)
	}
	var ports [2]uint64
	for i, w := range words {
		if ports[i], err = strconv.ParseUint(w, 10, 16); err != nil || ports[i] == 0 {
			return f, fmt.Errorf("--forward %s: no port %q: %s", s, w, form)
		}
	}
	f.Listen = netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), uint16(ports[0]))
	f.To = netip.AddrPortFrom(Addr4(guest).Addr(), uint16(ports[1]))
	return f, nil
}
