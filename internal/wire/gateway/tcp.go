package gateway

import (
	"context"
	"net"
	"sync"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
	"gvisor.dev/gvisor/pkg/waiter"

	"vnic.dev/vnic/internal/ether"
	"vnic.dev/vnic/internal/limits"
)

// takeTCP takes an entry of g.tcp for an owner's new connection; nil: the owner may have no more. It may end another
// connection to make room (unfinished.room, quota.take).
func (g *Gateway) takeTCP(o owner, end func()) *entry {
	if !g.unfinished.room(o) {
		g.count.refused.Add(1)
		return nil
	}
	return g.tcp.take(o, end)
}

// pending has the connections that guests ask for and do not have yet. Its segment is netstack's handler of TCP.
type pending struct {
	g     *Gateway
	next  *tcp.Forwarder
	quota *quota

	mu  sync.Mutex
	ids map[stack.TransportEndpointID]asked
}

type asked struct {
	entry *entry
	to    []permit
	ctx   context.Context
	end   context.CancelFunc // ends ctx; the quota calls it when it removes entry
}

// segment handles a TCP segment of no connection in netstack; false: netstack answers with a reset, unless the segment
// is a reset or malformed.
func (p *pending) segment(id stack.TransportEndpointID, pkt *stack.PacketBuffer) bool {
	h := header.TCP(pkt.TransportHeader().Slice())
	if len(h) < header.TCPMinimumSize || h.Flags()&(header.TCPFlagSyn|header.TCPFlagAck) != header.TCPFlagSyn {
		return false
	}
	g, to := p.g, addrPort(id.LocalAddress, id.LocalPort)
	if g.looped(id) || !g.o.NAT && !g.dns.serves(to) {
		return false
	}
	var a asked
	from := g.port.sender()
	if p.asked(id).entry != nil {
		return true // it is pending already
	}
	if !g.dns.serves(to) {
		if a.to = g.permits(from, id); a.to == nil {
			return false
		}
	}
	a.ctx, a.end = context.WithCancel(g.ctx)
	if a.entry = p.quota.take(from, a.end); a.entry == nil {
		a.end()
		return false
	}
	p.mu.Lock()
	p.ids[id] = a
	p.mu.Unlock()
	if !p.next.HandlePacket(id, pkt) { // a bad checksum, or the like
		p.end(id)
		return false
	}
	return true
}

func (p *pending) end(id stack.TransportEndpointID) {
	p.mu.Lock()
	a := p.ids[id]
	delete(p.ids, id)
	p.mu.Unlock()
	a.entry.give()
}

func (p *pending) asked(id stack.TransportEndpointID) asked {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.ids[id]
}

// connection makes a connection that a guest asks for, and serves it until it ends; or it resets the guest's end.
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
	defer a.end()
	from := a.entry.owner
	if a.to == nil {
		g.dns.connection(a.ctx, r, from, made)
		return
	}
	ctx, end := context.WithCancel(a.ctx)
	defer end()
	entry := g.takeTCP(from, end)
	if entry == nil {
		r.Complete(true)
		return
	}
	defer entry.give()
	dial, cancel := context.WithTimeout(ctx, limits.Dial.Here())
	defer cancel()
	c, err := g.dialFirst(dial, a.to)
	if err != nil {
		g.count.unreached.Add(1)
		r.Complete(true)
		return
	}
	host := hostConn{c.(*net.TCPConn)}
	wq := new(waiter.Queue)
	ep, terr := g.handshake(ctx, r, wq)
	if terr != nil {
		g.count.unreached.Add(1)
		host.reset()
		r.Complete(true)
		return
	}
	bufs := g.buffers.take(from, entry.nth, 2)
	bufs.set(ep)
	r.Complete(false)
	made()
	g.count.tcpFlows.Add(1)
	splice(ctx, newGuestConn(wq, ep), host)
	g.unfinished.add(from, ep, bufs)
}

// handshake makes the guest's end of a connection. It fails if the guest does not confirm it within confirmTime, if ctx
// ends, or if netstack fails. As CreateEndpoint takes no context, handshake aborts the endpoint to end its wait.
func (g *Gateway) handshake(ctx context.Context, r *tcp.ForwarderRequest, wq *waiter.Queue) (tcpip.Endpoint,
	tcpip.Error) {
	ctx, cancel := context.WithTimeout(ctx, g.confirmTime.Here())
	defer cancel()
	id := r.ID()
	proto := ether.Protocol(addrPort(id.LocalAddress, 0).Addr())
	made, aborted := make(chan struct{}), make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(aborted)
		for again := time.NewTicker(abortAgain); ; { // the endpoint may not exist yet
			if e := g.ns.FindTransportEndpoint(proto, tcp.ProtocolNumber, id, ether.NIC); e != nil {
				e.Abort()
			}
			select {
			case <-again.C:
			case <-made:
				again.Stop()
				return
			}
		}
	})
	ep, err := r.CreateEndpoint(wq)
	close(made)
	if !stop() {
		<-aborted // so that the function above does not abort a later connection with this ID
	}
	return ep, err
}
