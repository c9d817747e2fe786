package lab

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/internal/ownports"
	"vnic.dev/vnic/internal/wire/gateway"
)

const gatewayHost = 254

// GatewayAddrs returns the gateway's addresses: 10.118.110.254/24 and fd76:6e69::fe/64.
func GatewayAddrs() (v4, v6 netip.Prefix) { return Addr4(gatewayHost - 1), Addr6(gatewayHost - 1) }

// Gateway returns a Service that opens a gateway with a copy of o. The service sets the copy's MAC, prefixes, MTUs, Log
// and Own. If o.Hosts is nil, the hosts are the lab's ports.
func Gateway(o gateway.Options) Service {
	return func(l *Lab) (io.Closer, error) {
		o := o
		o.Own = ownports.Has
		o.MAC, o.MTU, o.Log = MAC(gatewayHost-1), l.MTU(), l.opt.Log
		o.MaxMTU = l.largestMTU().MaxMTU
		o.Prefix4, o.Prefix6 = GatewayAddrs()
		if o.Hosts == nil {
			for _, p := range l.ports {
				o.Hosts = append(o.Hosts, gateway.Host{Name: p.Name, MAC: p.MAC, Addr4: p.Addr4.Addr(), Addr6: p.Addr6.Addr()})
			}
		}
		g, err := gateway.New(l.sw, o)
		switch {
		case errors.Is(err, unix.EADDRINUSE), errors.Is(err, unix.EACCES):
			return nil, fmt.Errorf("%w: give another port (--forward)", err)
		case err != nil:
			return nil, fmt.Errorf("gateway: %w", err)
		}
		return g, nil
	}
}

// Values of GatewayFlags.Gateway; "" stands for GatewayNAT.
const (
	GatewayNAT      = "nat"      // guests reach this machine's network, and its own ports, as the Policy allows
	GatewayIsolated = "isolated" // guests reach each other and the gateway; forwards work
	GatewayOff      = "off"      // no gateway
)

// GatewayFlags are the values of the flags about the gateway.
type GatewayFlags struct {
	Gateway   string
	NoGateway bool
	HostPorts string   // in the syntax of gateway.ParsePorts; "": the command's default
	Deny      []string // in the syntax of gateway.ParsePrefix, as is Allow
	Allow     []string
	Forwards  []string // in the syntax of ParseForward
}

// Off reports whether the flags switch the gateway off.
func (f *GatewayFlags) Off() bool { return f.NoGateway || f.Gateway == GatewayOff }

// Options returns the gateway's options for these flags. In Forwards, a guest is called by the parameter name and a
// number below n. ports is the default for HostPorts.
func (f *GatewayFlags) Options(name string, n int, ports string) (o gateway.Options, err error) {
	mode := cmp.Or(f.Gateway, GatewayNAT)
	switch {
	case mode != GatewayNAT && mode != GatewayIsolated && mode != GatewayOff:
		return o, fmt.Errorf("--gateway %s: nat, isolated or off", mode)
	case f.NoGateway && f.Gateway != "" && f.Gateway != GatewayOff:
		return o, fmt.Errorf("--no-gateway and --gateway %s: one or the other", f.Gateway)
	case f.Off() && len(f.Forwards) > 0:
		return o, fmt.Errorf("--forward is the gateway's: not with %s", f.off())
	}
	if o.NAT = mode == GatewayNAT && !f.Off(); !o.NAT {
		for _, x := range []struct {
			flag string
			set  bool
		}{{"--host-ports", f.HostPorts != ""}, {"--deny", len(f.Deny) > 0}, {"--allow", len(f.Allow) > 0}} {
			if x.set {
				return o, fmt.Errorf("%s is for a gateway that leads out: not with %s", x.flag, f.off())
			}
		}
	}
	if o.Policy, err = f.policy(ports); err != nil {
		return o, err
	}
	for _, s := range f.Forwards {
		fw, err := ParseForward(s, name, n)
		if err != nil {
			return o, err
		}
		o.Forwards = append(o.Forwards, fw)
	}
	return o, nil
}

// off returns the flag that denies guests this machine's network, for an error text.
func (f *GatewayFlags) off() string {
	if f.NoGateway {
		return "--no-gateway"
	}
	return "--gateway " + f.Gateway
}

func (f *GatewayFlags) policy(ports string) (p gateway.Policy, err error) {
	if p.HostPorts, err = gateway.ParsePorts(cmp.Or(f.HostPorts, ports)); err != nil {
		return p, fmt.Errorf("--host-ports %w", err)
	}
	denied := map[netip.Prefix]bool{}
	for _, s := range f.Deny {
		c, err := gateway.ParsePrefix(s)
		if err != nil {
			return p, fmt.Errorf("--deny %s: %w", s, err)
		}
		p.Deny, denied[c] = append(p.Deny, c), true
	}
	for _, s := range f.Allow {
		c, err := gateway.ParsePrefix(s)
		switch {
		case err != nil:
			return p, fmt.Errorf("--allow %s: %w", s, err)
		case denied[c]:
			return p, fmt.Errorf("--allow %s and --deny %s: one or the other", s, s)
		case c.Addr().IsLoopback():
			return p, fmt.Errorf("--allow %s: this machine's own ports are opened by --host-ports", s)
		case gateway.Reserved(c):
			return p, fmt.Errorf("--allow %s: no machine has such an address", s)
		}
		p.Allow = append(p.Allow, c)
	}
	return p, nil
}

// ParseForward parses a forward [tcp:|udp:]HOSTPORT:[NAMEi:]GUESTPORT to guest i of n, where NAME is the parameter
// name. Without a protocol the forward is of TCP, and without a guest to guest 0. It listens at 127.0.0.1.
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
