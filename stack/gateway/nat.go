package gateway

import (
	"context"
	"io"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
	"gvisor.dev/gvisor/pkg/tcpip/transport/udp"
	"gvisor.dev/gvisor/pkg/waiter"
)

// Bounds of flows, those of NAT and forwards together. A guest has no more than half of them; of the pending a quarter.
const (
	maxTCP     = 1024
	maxPending = 256 // connections that guests ask for and do not have yet
	maxUDP     = 512
	dialTime   = 10 * time.Second
	udpIdle    = 30 * time.Second // that a UDP flow may be silent
	maxUDPSize = 64 << 10
)

// startNAT has guests reach the host's network, if they may.
func (g *Gateway) startNAT() {
	if !g.o.NAT {
		return
	}
	p := &pending{g: g, quota: newQuota(maxPending, maxPending/4, &g.count.refused), ids: map[stack.TransportEndpointID]bool{}}
	p.next = tcp.NewForwarder(g.ns, 0, maxPending+1, p.connection)
	g.ns.SetTransportProtocolHandler(tcp.ProtocolNumber, p.segment)
	flows := udp.NewForwarder(g.ns, g.flow)
	g.ns.SetTransportProtocolHandler(udp.ProtocolNumber, flows.HandlePacket)
	// From here on netstack answers for any address. The filter has let in what it may answer for.
	_ = g.ns.SetPromiscuousMode(nicID, true)
	_ = g.ns.SetSpoofing(nicID, true)
}

// loopbacks are the host's, those of a guest's family first: a server of the host may listen on one of them only, and a
// name like "gateway" has both families.
var (
	loopback4 = netip.AddrFrom4([4]byte{127, 0, 0, 1})
	loopback6 = netip.IPv6Loopback()
)

// hostSide gives the host's addresses for one that a guest sends to: the gateway's own is the host's loopback.
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

// dialFirst makes a connection to the first of the addresses that takes it.
func (g *Gateway) dialFirst(ctx context.Context, to []netip.AddrPort) (c net.Conn, err error) {
	for _, a := range to {
		if c, err = g.dial(ctx, "tcp", a); err == nil {
			break
		}
	}
	return c, err
}

// dialHost makes a socket of the host.
func dialHost(ctx context.Context, network string, to netip.AddrPort) (net.Conn, error) {
	var d net.Dialer
	return d.DialContext(ctx, network, to.String())
}

// takeTCP counts one connection more. Those that nobody owns any more, but whose guest has not confirmed the end, count too.
func (g *Gateway) takeTCP(guest netip.Addr) bool {
	if g.ns.Stats().TCP.CurrentConnected.Value() >= 2*maxTCP {
		g.count.refused.Add(1)
		return false
	}
	return g.tcp.take(guest)
}

// pending are the connections that guests ask for and do not have yet.
type pending struct {
	g     *Gateway
	next  *tcp.Forwarder
	quota *quota

	mu  sync.Mutex
	ids map[stack.TransportEndpointID]bool
}

// segment gets the segments of TCP that belong to no connection; false: they are refused.
func (p *pending) segment(id stack.TransportEndpointID, pkt *stack.PacketBuffer) bool {
	h := header.TCP(pkt.TransportHeader().Slice())
	if len(h) < header.TCPMinimumSize || h.Flags()&(header.TCPFlagSyn|header.TCPFlagAck) != header.TCPFlagSyn {
		return false
	}
	p.mu.Lock()
	known := p.ids[id]
	taken := !known && p.quota.take(addrPort(id.RemoteAddress, 0).Addr())
	if taken {
		p.ids[id] = true
	}
	p.mu.Unlock()
	if !taken {
		return known // what is known is on its way
	}
	if !p.next.HandlePacket(id, pkt) { // a bad checksum, or the like
		p.end(id)
		return false
	}
	return true
}

func (p *pending) end(id stack.TransportEndpointID) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.ids, id)
	p.quota.give(addrPort(id.RemoteAddress, 0).Addr())
}

// connection carries on a connection that a guest asks for. Netstack calls it on a goroutine of its own.
func (p *pending) connection(r *tcp.ForwarderRequest) {
	g, id := p.g, r.ID()
	made := sync.OnceFunc(func() { p.end(id) })
	defer made()
	if !g.begin() {
		r.Complete(true)
		return
	}
	defer g.end()
	from := addrPort(id.RemoteAddress, id.RemotePort).Addr()
	if !g.takeTCP(from) {
		r.Complete(true)
		return
	}
	defer g.tcp.give(from)
	to := g.hostSide(addrPort(id.LocalAddress, id.LocalPort))
	ctx, cancel := context.WithTimeout(g.ctx, dialTime)
	defer cancel()
	c, err := g.dialFirst(ctx, to)
	if err != nil {
		g.count.unreached.Add(1)
		r.Complete(true)
		return
	}
	host := hostConn{c.(*net.TCPConn)}
	wq := new(waiter.Queue)
	ep, terr := r.CreateEndpoint(wq)
	if terr != nil {
		g.count.unreached.Add(1)
		host.reset()
		r.Complete(true)
		return
	}
	r.Complete(false)
	made()
	g.count.tcpFlows.Add(1)
	splice(g.ctx, newGuestConn(wq, ep), host)
}

// flow carries on a UDP flow that a guest begins. Netstack calls it with the flow's first datagram, on the goroutine that
// brought it.
func (g *Gateway) flow(r *udp.ForwarderRequest) bool {
	if !g.begin() {
		return true
	}
	id := r.ID()
	from := addrPort(id.RemoteAddress, id.RemotePort).Addr()
	if !g.udp.take(from) {
		g.end()
		return true
	}
	wq := new(waiter.Queue)
	ep, terr := r.CreateEndpoint(wq)
	if terr != nil {
		g.udp.give(from)
		g.end()
		return true
	}
	to := g.hostSide(addrPort(id.LocalAddress, id.LocalPort))
	guest := gonet.NewUDPConn(wq, ep)
	go func() {
		defer g.end()
		defer g.udp.give(from)
		host, err := g.dial(g.ctx, "udp", to[0])
		if err != nil {
			g.count.unreached.Add(1)
			guest.Close()
			return
		}
		g.count.udpFlows.Add(1)
		g.relay(guest, host)
	}()
	return true
}

// relay joins the two ends of a UDP flow until it has been silent for a while, or one end fails. It closes both.
func (g *Gateway) relay(a, b net.Conn) {
	end := func() {
		a.Close()
		b.Close()
	}
	stop := context.AfterFunc(g.ctx, func() { // a reader that has a deadline sees that
		_ = a.SetReadDeadline(time.Now())
		_ = b.SetReadDeadline(time.Now())
	})
	defer stop()
	f := &udpFlow{g: g}
	f.touch()
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer end()
		f.pour(a, b)
	}()
	f.pour(b, a)
	end()
	<-done
}

// udpFlow knows when the last datagram came, in either direction.
type udpFlow struct {
	g    *Gateway
	last atomic.Int64 // nanoseconds since epoch
}

var epoch = time.Now()

func (f *udpFlow) touch() { f.last.Store(int64(time.Since(epoch))) }

// left is how long the flow may stay silent from now on.
func (f *udpFlow) left() time.Duration {
	return f.g.udpIdle - (time.Since(epoch) - time.Duration(f.last.Load()))
}

// pour passes datagrams on from src to dst, until the flow ends.
func (f *udpFlow) pour(dst io.Writer, src net.Conn) {
	chunk := chunks.Get().(*[maxUDPSize]byte)
	defer chunks.Put(chunk)
	for left := f.left(); left > 0; left = f.left() {
		_ = src.SetReadDeadline(time.Now().Add(left))
		if f.g.ctx.Err() != nil { // the deadline that Close has set is gone
			return
		}
		n, err := src.Read(chunk[:])
		if err != nil {
			if ne, ok := err.(net.Error); ok && ne.Timeout() {
				continue // perhaps the other direction is alive
			}
			return
		}
		f.touch()
		_, _ = dst.Write(chunk[:n]) // datagrams may be lost; an end that is gone is seen by its reader
	}
}
