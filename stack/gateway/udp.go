package gateway

import (
	"context"
	"io"
	"net"
	"sync/atomic"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/udp"
	"gvisor.dev/gvisor/pkg/waiter"
)

// flow carries on a UDP flow that a guest begins. Netstack calls it with the flow's first datagram,
// on the goroutine that brought it.
func (g *Gateway) flow(id stack.TransportEndpointID, pkt *stack.PacketBuffer) bool {
	if g.looped(id) || !g.begin() {
		return true
	}
	from := g.port.sender()
	to := g.permits(from, id)
	if to == nil {
		g.end()
		g.prohibit(pkt)
		return true
	}
	if !g.udp.take(from) {
		g.end()
		return true
	}
	wq := new(waiter.Queue)
	pkt = pkt.Clone()
	defer pkt.DecRef()
	ep, terr := udp.NewForwarderRequest(g.ns, id, pkt).CreateEndpoint(wq)
	if terr != nil {
		g.udp.give(from)
		g.end()
		return true
	}
	guest := newUDPConn(wq, ep)
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

// prohibit tells the sender of a packet that it was refused (RFC 1812, 5.2.7.1; RFC 4443, 3.1), as often as netstack
// answers by ICMP.
func (g *Gateway) prohibit(pkt *stack.PacketBuffer) {
	switch p := g.ns.NetworkProtocolInstance(pkt.NetworkProtocolNumber).(type) {
	case stack.RejectIPv4WithHandler:
		p.SendRejectionError(pkt, stack.RejectIPv4WithICMPAdminProhibited, true)
	case stack.RejectIPv6WithHandler:
		p.SendRejectionError(pkt, stack.RejectIPv6WithICMPAdminProhibited, true)
	}
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
