package gateway

import (
	"context"
	"net"
	"sync"

	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
	"gvisor.dev/gvisor/pkg/waiter"

	"vnic.dev/vnic/internal/limits"
)

// takeTCP counts one connection more. Those without an owner whose guest has not confirmed
// the end count too.
func (g *Gateway) takeTCP(o owner) bool {
	if g.ns.Stats().TCP.CurrentConnected.Value() >= 2*maxTCP || !g.unfinished.room(o) {
		g.count.refused.Add(1)
		return false
	}
	return g.tcp.take(o)
}

// pending are the connections that guests ask for and do not have yet.
type pending struct {
	g     *Gateway
	next  *tcp.Forwarder
	quota *quota

	mu  sync.Mutex
	ids map[stack.TransportEndpointID]asked
}

// asked is a connection that is pending.
type asked struct {
	owner owner
	to    []permit // the host's end
}

// segment gets the segments of TCP that belong to no connection; false: they are refused.
func (p *pending) segment(id stack.TransportEndpointID, pkt *stack.PacketBuffer) bool {
	h := header.TCP(pkt.TransportHeader().Slice())
	if len(h) < header.TCPMinimumSize || h.Flags()&(header.TCPFlagSyn|header.TCPFlagAck) != header.TCPFlagSyn {
		return false
	}
	g, to := p.g, addrPort(id.LocalAddress, id.LocalPort)
	if g.looped(id) || !g.o.NAT && !g.dns.is(to) {
		return false
	}
	a := asked{owner: g.port.sender()}
	if p.known(id) {
		return true // it is on its way
	}
	if !g.dns.is(to) {
		if a.to = g.permits(a.owner, id); a.to == nil {
			return false
		}
	}
	p.mu.Lock()
	taken := p.quota.take(a.owner)
	if taken {
		p.ids[id] = a
	}
	p.mu.Unlock()
	if !taken {
		return false
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
	p.quota.give(p.ids[id].owner)
	delete(p.ids, id)
}

// known says whether a connection is pending. Only segment adds one.
func (p *pending) known(id stack.TransportEndpointID) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	_, known := p.ids[id]
	return known
}

// asked is what is known of a connection that is pending.
func (p *pending) asked(id stack.TransportEndpointID) asked {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.ids[id]
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
	a := p.asked(id)
	from := a.owner
	if a.to == nil {
		g.dns.connection(r, from, made)
		return
	}
	if !g.takeTCP(from) {
		r.Complete(true)
		return
	}
	defer g.tcp.give(from)
	ctx, cancel := context.WithTimeout(g.ctx, limits.Dial.Here())
	defer cancel()
	c, err := g.dialFirst(ctx, a.to)
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
	g.unfinished.add(from, ep)
}
