package gateway

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv6"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/udp"

	"vnic.dev/vnic/internal/ether"
	"vnic.dev/vnic/internal/limits"
	"vnic.dev/vnic/internal/netlog"
	"vnic.dev/vnic/internal/wire"
)

// abortAgain is the interval at which Close and handshake abort endpoints again: a handshake may have made another.
const abortAgain = 5 * time.Millisecond

// Gateway is a running gateway.
type Gateway struct {
	o      Options
	log    *slog.Logger
	sw     *wire.Switch
	link   *wire.Link
	port   *port
	out    *outbox
	ns     *stack.Stack
	count  counters
	leases *leases
	names  *names
	dns    *dnsServer
	tcp    *quota // for TCP connections of NAT and forwards
	udp    *quota // for datagram flows of NAT and forwards

	pending *quota // for guests' connections that are not established yet

	unfinished unfinished
	buffers    *budget
	sockets    *budget
	flows      flows
	waiting    atomic.Int64 // bytes in the backlogs
	opens      *turns

	// Tests may change the following functions and limits before start.
	now       func() time.Time
	resolvers func() []netip.AddrPort
	search    []string // domains by which guests complete names
	dial      func(ctx context.Context, network string, to permit) (net.Conn, error)
	host      *hostAddrs
	udpIdle   time.Duration
	askTime   time.Duration

	confirmTime limits.Limit // for a guest to confirm a connection

	dialResolver func(ctx context.Context, network string, to permit) (net.Conn, error)
	listenHost   func(addr netip.AddrPort) (Datagrams, error)
	openFlow     func(ctx context.Context, f Flow, p permit) (*net.UDPConn, error)
	openAnswer   func(ctx context.Context, a Answer) (*net.UDPConn, error)

	ctx    context.Context
	cancel context.CancelFunc
	work   sync.WaitGroup

	mu     sync.Mutex
	closed bool
	rates  map[uint32]*rates // by owner.link
}

// New makes a gateway, attaches it to a switch, and starts it.
func New(sw *wire.Switch, o Options) (*Gateway, error) {
	g, err := newGateway(sw, o)
	if err != nil {
		return nil, err
	}
	if err := g.start(); err != nil {
		return nil, err
	}
	return g, nil
}

func newGateway(sw *wire.Switch, o Options) (*Gateway, error) {
	o.Hosts, o.Forwards = slices.Clone(o.Hosts), slices.Clone(o.Forwards)
	o.Policy.Deny, o.Policy.Allow = slices.Clone(o.Policy.Deny), slices.Clone(o.Policy.Allow)
	if err := o.check(); err != nil {
		return nil, err
	}
	netlog.Quiet()
	g := &Gateway{o: o, log: o.Log.With("port", o.Name), sw: sw, resolvers: hostResolvers, dial: dialHost,
		host: newHostAddrs(interfaceAddrs), udpIdle: flowIdle, now: time.Now,
		askTime: limits.Resolver.Here(), confirmTime: limits.Dial,
		dialResolver: dialHost, listenHost: listenHost,
		openFlow:   func(ctx context.Context, f Flow, _ permit) (*net.UDPConn, error) { return f.open(ctx) },
		openAnswer: openAnswer, rates: map[uint32]*rates{},
		unfinished: unfinished{shares: newShares[ended](maxUnfinished)}}
	if out := o.Outside; out != nil {
		g.resolvers, g.listenHost, g.host = out.Resolvers, out.ListenUDP, newHostAddrs(out.Addrs)
		g.dial = func(ctx context.Context, n string, p permit) (net.Conn, error) { return out.Dial(ctx, n, p.to) }
		g.openFlow = func(ctx context.Context, f Flow, _ permit) (*net.UDPConn, error) { return out.OpenFlow(ctx, f) }
		g.openAnswer = out.OpenAnswer
		g.dialResolver = func(ctx context.Context, n string, p permit) (net.Conn, error) {
			return out.DialResolver(ctx, n, p.to)
		}
	}
	g.buffers = newBudget(bufferMost, bufferLeast, bufferSpare)
	g.sockets = newBudget(flowBuffer, flowLeast, flowSpare)
	g.ctx, g.cancel = context.WithCancel(context.Background())
	g.leases = newLeases(&g.o)
	g.leases.sw = sw
	g.names = newNames(&g.o)
	g.search = []string{domain}
	if o.NAT {
		g.search = append(g.search, hostSearch()...)
	}
	g.opens = newTurns(flowOpens)
	g.flows = flows{byKey: map[flowKey]*flow{}, forwards: map[forwardKey]*outerFlow{}}
	g.tcp, g.udp, g.pending = newQuota(maxTCP, &g.count), newQuota(maxUDP, &g.count), newQuota(maxPending, &g.count)
	return g, nil
}

// start configures netstack, attaches the gateway, and starts its goroutines. After an error it undoes that.
func (g *Gateway) start() error {
	var err error
	if g.out, err = newOutbox(&g.count, g.log); err != nil {
		return err
	}
	ep := &endpoint{Link: ether.Link{Addr: tcpip.LinkAddress(g.o.MAC[:]), Bytes: uint32(g.o.MTU)}, out: g.out}
	g.port = &port{
		name: g.o.Name, mac: g.o.MAC, limits: portLimits(g.o.MaxMTU), count: &g.count, in: newInbox(), ep: ep,
		filter:    filter{prefix4: g.o.Prefix4, prefix6: g.o.Prefix6, local6: g.local6(), nat: g.o.NAT},
		solicited: make(chan struct{}, 1), done: make(chan struct{}), stats: g.Stats, unreachable: g.unreachable,
		restarted: g.forget,
	}
	g.ns = ether.New(udp.NewProtocol)
	err = g.configure(ep)
	if err == nil {
		err = errors.Join(g.startDHCP(), g.startDNS(), g.startForwards())
		g.startFlows()
	}
	if err == nil { // last, because netstack must not be configured under traffic
		g.link, err = g.sw.Attach(g.port, wire.LinkOptions{Identity: &wire.Identity{MAC: g.o.MAC, Router: true}})
	}
	if err == nil {
		g.reserve()
	}
	go g.port.run()
	g.out.link = g.link
	g.out.run()
	if err != nil {
		return errors.Join(err, g.Close())
	}
	g.startAdvertising()
	g.log.Info("gateway serves", "ipv4", g.o.Prefix4, "ipv6", g.o.Prefix6, "nat", g.o.NAT, "hosts", len(g.o.Hosts))
	return nil
}

func (g *Gateway) forget(o owner) {
	for _, q := range []*quota{g.tcp, g.udp, g.pending, g.dns.asked, g.dns.conns} {
		q.endOf(o)
	}
	g.unfinished.endOf(o)
}

func (g *Gateway) reserve() {
	addrs := []netip.Addr{g.local6()}
	for _, p := range []netip.Prefix{g.o.Prefix4, g.o.Prefix6} {
		if p.IsValid() {
			addrs = append(addrs, p.Addr(), p.Masked().Addr())
		}
	}
	if g.o.Prefix4.IsValid() {
		addrs = append(addrs, lastOf(g.o.Prefix4))
	}
	g.link.Reserve(g.o.MAC, addrs...)
	for _, h := range g.o.Hosts {
		for _, a := range []netip.Addr{h.Addr4, h.Addr6} {
			if a.IsValid() && h.MAC != (wire.MAC{}) {
				g.link.Reserve(h.MAC, a)
			}
		}
	}
}

func (g *Gateway) local6() netip.Addr {
	a := header.LinkLocalAddr(tcpip.LinkAddress(g.o.MAC[:]))
	return netip.AddrFrom16(a.As16())
}

func (g *Gateway) configure(ep *endpoint) error {
	recovery := tcpip.TCPRecovery(0)
	send := tcpip.TCPSendBufferSizeRangeOption{Min: 4 << 10, Default: 1 << 20, Max: 1 << 20}
	recv := tcpip.TCPReceiveBufferSizeRangeOption{Min: 4 << 10, Default: 1 << 20, Max: 1 << 20}
	linger, timeWait := tcpip.TCPLingerTimeoutOption(10*time.Second), tcpip.TCPTimeWaitTimeoutOption(5*time.Second)
	sack, moderate, syn := tcpip.TCPSACKEnabled(true), tcpip.TCPModerateReceiveBufferOption(true),
		tcpip.TCPSynRetriesOption(4)
	rto := ether.MinRTO(limits.MinRTORACK.Here())
	if err := ether.SetTCP(g.ns, &recovery, rto, &send, &recv, &linger, &timeWait, &sack, &moderate, &syn); err != nil {
		return fmt.Errorf("netstack: %w", err)
	}
	for _, o := range []any{
		tcpip.ReceiveBufferSizeOption{Min: 4 << 10, Default: 256 << 10, Max: 256 << 10},
		tcpip.SendBufferSizeOption{Min: 4 << 10, Default: 256 << 10, Max: 256 << 10},
	} {
		if err := g.ns.SetOption(o); err != nil {
			return fmt.Errorf("netstack: option %T: %s", o, err)
		}
	}
	g.ns.SetICMPLimit(rate.Inf) // each port has its own limit: allowsError
	if err := g.ns.CreateNIC(ether.NIC, ep); err != nil {
		return fmt.Errorf("netstack: %s", err)
	}
	var routes []tcpip.Route
	for _, p := range []netip.Prefix{g.o.Prefix4, g.o.Prefix6, netip.PrefixFrom(g.local6(), 64)} {
		if !p.IsValid() || p.Addr().Is6() && !g.o.Prefix6.IsValid() {
			continue
		}
		r, err := ether.AddAddress(g.ns, p)
		if err != nil {
			return fmt.Errorf("netstack: %w", err)
		}
		routes = append(routes, r)
	}
	g.ns.SetRouteTable(routes)
	if g.o.Prefix6.IsValid() && g.o.NAT { // sets the router flag in neighbor advertisements (RFC 4861, 4.4)
		if _, err := g.ns.SetNICForwarding(ether.NIC, ipv6.ProtocolNumber, true); err != nil {
			return fmt.Errorf("netstack: forwarding: %s", err)
		}
	}
	return nil
}

// Addr4 returns the gateway's IPv4 address with the length of its network's prefix; invalid if it has none.
func (g *Gateway) Addr4() netip.Prefix { return g.o.Prefix4 }

// Link returns the gateway's link on the switch.
func (g *Gateway) Link() *wire.Link { return g.link }

// begin makes Close wait until the caller calls end; false: the gateway is being closed, and the caller must not call
// end.
func (g *Gateway) begin() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.closed {
		g.work.Add(1)
	}
	return !g.closed
}

func (g *Gateway) end() { g.work.Done() }

// serve runs f on a goroutine for which Close waits; false: the gateway is being closed, and f does not run.
func (g *Gateway) serve(f func()) bool {
	if !g.begin() {
		return false
	}
	go func() {
		defer g.end()
		f()
	}()
	return true
}

// pause waits 50 ms, after an error that may come again; false: the gateway is being closed.
func (g *Gateway) pause() bool {
	select {
	case <-time.After(50 * time.Millisecond):
		return true
	case <-g.ctx.Done():
		return false
	}
}

// Close resets the TCP connections, ends flows and forwards, detaches the gateway from its switch, and waits for the
// gateway's goroutines. A second call returns at once, maybe before the first has ended.
func (g *Gateway) Close() error {
	g.mu.Lock()
	closed := g.closed
	g.closed = true
	g.mu.Unlock()
	if closed {
		return nil
	}
	g.cancel()
	g.port.in.close()
	<-g.port.done
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		g.work.Wait()
	}()
	g.ns.Close()
	for again := time.NewTicker(abortAgain); ; {
		for _, e := range g.ns.RegisteredEndpoints() { // endpoints of a handshake that has just begun, too
			e.Abort()
		}
		select {
		case <-again.C:
			continue
		case <-ended:
			again.Stop()
		}
		break
	}
	g.ns.Wait()
	g.out.close() // sends the last packets, such as resets, to guests that take them at once
	if g.link == nil {
		return nil
	}
	err := g.sw.Detach(g.link)
	if errors.Is(err, wire.ErrDetached) {
		err = nil
	}
	return err
}

func fullAddress(ap netip.AddrPort) tcpip.FullAddress {
	return tcpip.FullAddress{NIC: ether.NIC, Addr: ether.Address(ap.Addr()), Port: ap.Port()}
}

func addrPort(a tcpip.Address, port uint16) netip.AddrPort {
	ip, _ := netip.AddrFromSlice(a.AsSlice())
	return netip.AddrPortFrom(ip, port)
}
