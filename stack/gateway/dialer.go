package gateway

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"
)

// dialHost makes a socket of the host.
func dialHost(ctx context.Context, network string, p permit) (net.Conn, error) {
	var d net.Dialer
	return d.DialContext(ctx, network, p.to.String())
}

// listenHost makes the socket of a forward of UDP.
func listenHost(at netip.AddrPort) (Datagrams, error) {
	return net.ListenUDP("udp", net.UDPAddrFromAddrPort(at))
}

// A Dialer makes sockets of this process's for a gateway in another one, and trusts it in nothing:
// each address is judged here, by the policy that the Dialer was made with. It can be used by
// several goroutines.
type Dialer struct {
	nat       bool
	policy    Policy
	forwards  []Forward
	host      *hostAddrs
	resolvers func() []netip.AddrPort
}

// NewDialer takes NAT, Policy and Forwards of a gateway's options.
func NewDialer(o Options) *Dialer {
	return &Dialer{nat: o.NAT, policy: o.Policy, forwards: o.Forwards, host: newHostAddrs(net.InterfaceAddrs),
		resolvers: hostResolvers}
}

var _ Outside = (*Dialer)(nil)

// refusedOutside is an error that is EPERM.
func refusedOutside(to netip.AddrPort, why string) error {
	return fmt.Errorf("%v is refused: %s: %w", to, why, unix.EPERM)
}

// Dial is Outside's.
func (d *Dialer) Dial(ctx context.Context, network string, to netip.AddrPort) (net.Conn, error) {
	if !d.nat || network != "tcp" && network != "udp" {
		return nil, refusedOutside(to, "no NAT")
	}
	p, no := d.policy.judge(to, d.host)
	if no != nil {
		return nil, refusedOutside(to, no.rule.String())
	}
	return dialHost(ctx, network, p)
}

// DialResolver is Outside's.
func (d *Dialer) DialResolver(ctx context.Context, network string, to netip.AddrPort) (net.Conn, error) {
	if !d.nat || network != "tcp" && network != "udp" || !slices.Contains(d.resolvers(), to) {
		return nil, refusedOutside(to, "no resolver of this machine")
	}
	p, no := d.policy.judgeResolver(to)
	if no != nil {
		return nil, refusedOutside(to, no.rule.String())
	}
	return dialHost(ctx, network, p)
}

// Resolvers is Outside's.
func (d *Dialer) Resolvers() []netip.AddrPort { return d.resolvers() }

// Addrs is Outside's.
func (d *Dialer) Addrs() (out []netip.Addr, err error) {
	list, err := net.InterfaceAddrs()
	for _, l := range list {
		if n, ok := l.(*net.IPNet); ok {
			if a, ok := netip.AddrFromSlice(n.IP); ok {
				out = append(out, a.Unmap())
			}
		}
	}
	return out, err
}

// ListenUDP is Outside's: only at a forward's address.
func (d *Dialer) ListenUDP(at netip.AddrPort) (Datagrams, error) {
	for _, f := range d.forwards {
		if f.Proto == "udp" && f.Listen == at {
			return listenHost(at)
		}
	}
	return nil, refusedOutside(at, "no forward of UDP")
}

// addrsOf is Addrs as package net has it.
func addrsOf(o Outside) func() ([]net.Addr, error) {
	return func() ([]net.Addr, error) {
		list, err := o.Addrs()
		out := make([]net.Addr, len(list))
		for i, a := range list {
			out[i] = &net.IPNet{IP: a.AsSlice(), Mask: net.CIDRMask(a.BitLen(), a.BitLen())}
		}
		return out, err
	}
}
