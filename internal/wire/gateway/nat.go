package gateway

import (
	"context"
	"log/slog"
	"math"
	"net"
	"net/netip"

	"golang.org/x/time/rate"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/icmp"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
	"gvisor.dev/gvisor/pkg/tcpip/transport/udp"

	"vnic.dev/vnic/internal/ether"
	"vnic.dev/vnic/internal/nic"
	"vnic.dev/vnic/internal/wire"
)

// Bounds of connections and datagram flows (quota.go).
const (
	maxTCP     = 1024     // connections of NAT and forwards, open or being made
	maxPending = 256      // connections that guests ask for, also to DNS, and do not have yet
	maxUDP     = 1024     // datagram flows of NAT and forwards
	maxUDPSize = 64 << 10 // bytes, more than a UDP datagram can have
)

// startFlows sets netstack's handlers for guests' TCP segments and UDP datagrams and, with NAT, for ICMP, and starts
// sweepFlows. With NAT it also makes netstack accept packets to any address.
func (g *Gateway) startFlows() {
	p := &pending{g: g, quota: g.pending,
		ids: map[stack.TransportEndpointID]asked{}}
	// The forwarder has no limit: a connection that the quota accepts and the forwarder ignores would stay in p.ids for
	// ever.
	p.next = tcp.NewForwarder(g.ns, 0, math.MaxInt, p.connection)
	g.ns.SetTransportProtocolHandler(tcp.ProtocolNumber, p.segment)
	g.ns.SetTransportProtocolHandler(udp.ProtocolNumber, g.datagram)
	g.serve(g.sweepFlows)
	if !g.o.NAT {
		return
	}
	g.ns.SetTransportProtocolHandler(icmp.ProtocolNumber4, g.echo)
	g.ns.SetTransportProtocolHandler(icmp.ProtocolNumber6, g.echo)
	// From here on netstack accepts packets to any address and sends from any. port.filter refuses packets that
	// netstack must not answer.
	_ = g.ns.SetPromiscuousMode(ether.NIC, true)
	_ = g.ns.SetSpoofing(ether.NIC, true)
}

var (
	loopback4 = netip.AddrFrom4([4]byte{127, 0, 0, 1})
	loopback6 = netip.IPv6Loopback()
)

// looped reports whether the source of a packet is an address of the gateway: netstack also receives the broadcasts
// that it sends.
func (g *Gateway) looped(id stack.TransportEndpointID) bool {
	return g.isOwn(addrPort(id.RemoteAddress, 0).Addr())
}

// hostSide translates an address and port to which a guest sends. For an address of the gateway it returns the same
// port at both loopbacks, first at the one of the same IP version; any other address it returns unchanged.
func (g *Gateway) hostSide(to netip.AddrPort) []netip.AddrPort {
	v4, v6 := netip.AddrPortFrom(loopback4, to.Port()), netip.AddrPortFrom(loopback6, to.Port())
	switch to.Addr() {
	case g.o.Prefix4.Addr():
		return []netip.AddrPort{v4, v6}
	case g.o.Prefix6.Addr(), g.port.filter.local6:
		return []netip.AddrPort{v6, v4}
	}
	return []netip.AddrPort{to}
}

// permits returns permits for the addresses of hostSide, without the refused ones. If all are refused, it calls refuse
// for the first one.
func (g *Gateway) permits(from owner, id stack.TransportEndpointID) (list []permit) {
	var first *refusal
	for _, a := range g.hostSide(addrPort(id.LocalAddress, id.LocalPort)) {
		p, r := g.check(a)
		if r == nil {
			list = append(list, p)
		} else if first == nil {
			first = r
		}
	}
	if list == nil {
		g.refuse(from, addrPort(id.RemoteAddress, id.RemotePort), first)
	}
	return list
}

// refuse counts a refusal, and logs it at most once a second for each port of the switch.
func (g *Gateway) refuse(from owner, src netip.AddrPort, r *refusal) {
	g.count.denied[r.rule].Add(1)
	name := ""
	for _, l := range g.sw.Links() {
		if l.Serial() == from.link {
			name = l.Name()
		}
	}
	g.ratesOf(from).refusals.Log(g.log, slog.LevelWarn, "refused to a guest", "guest", name, "from", src, "to", r.to,
		"rule", r.rule, "flag", r.flag)
}

// Bounds of the ICMP errors to the guest behind one port of the switch (allowsError): netstack's defaults.
const (
	errorRate  = 1000 // a second
	errorBurst = 50
)

type rates struct {
	refusals nic.LogLimit
	errors   *rate.Limiter
}

func (g *Gateway) ratesOf(o owner) *rates {
	g.mu.Lock()
	defer g.mu.Unlock()
	r := g.rates[o.link]
	if r == nil {
		if len(g.rates) > wire.MaxPorts { // some entries are of detached links
			clear(g.rates)
		}
		r = &rates{errors: rate.NewLimiter(errorRate, errorBurst)}
		g.rates[o.link] = r
	}
	return r
}

func (g *Gateway) allowsError(o owner) bool { return g.ratesOf(o).errors.AllowN(g.now(), 1) }

func (g *Gateway) dialFirst(ctx context.Context, to []permit) (c net.Conn, err error) {
	for _, a := range to {
		if c, err = g.dial(ctx, "tcp", a); err == nil {
			break
		}
	}
	return c, err
}
