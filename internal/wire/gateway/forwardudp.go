package gateway

import (
	"context"
	"errors"
	"math/rand/v2"
	"net"
	"net/netip"
	"sync"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
)

// udpForward is a socket of the host whose datagrams go to a guest; each sender has a flow.
type udpForward struct {
	g      *Gateway
	host   Datagrams
	listen netip.AddrPort
	to     netip.AddrPort

	mu    sync.Mutex
	flows map[netip.AddrPort]*outerFlow
}

// forwardKey identifies a forward's flow by the guest and the gateway's port from which the guest gets its datagrams.
type forwardKey struct {
	guest netip.Addr
	port  uint16
}

// Ports that the gateway uses towards guests for outside senders (RFC 6335, 6).
const (
	firstPort = 49152
	numPorts  = 1<<16 - firstPort
)

// outerFlow is a datagram flow between an outside sender and a guest. Answers from another port of the guest than the
// forward's destination leave through at most flowSockets sockets at a time, one for each port.
type outerFlow struct {
	flowLife
	backlog
	u      *udpForward
	sender netip.AddrPort
	key    forwardKey
	back   *stack.Route

	extra []*flowSocket // for answers from other ports of the guest; under the backlog's mu
}

// listenUDP starts a forward of UDP, and sets the port in f.Listen.
func (g *Gateway) listenUDP(f *Forward) error {
	c, err := g.listenHost(f.Listen)
	if err != nil {
		return err
	}
	f.Listen = netip.AddrPortFrom(f.Listen.Addr(), c.LocalAddr().(*net.UDPAddr).AddrPort().Port())
	u := &udpForward{g: g, host: c, listen: f.Listen, to: f.To, flows: map[netip.AddrPort]*outerFlow{}}
	g.closes(c)
	g.serve(u.run)
	return nil
}

func (u *udpForward) run() {
	buf := make([]byte, maxUDPSize)
	var lost uint32
	for {
		n, from, err := u.host.ReadFromUDPAddrPort(buf)
		if err != nil {
			if errors.Is(err, net.ErrClosed) || !u.g.pause() {
				return
			}
			continue
		}
		if now := uint32(u.host.Lost()); now != lost { // the kernel's counter has 32 bits
			u.g.count.udpLost.Add(uint64(now - lost))
			lost = now
		}
		if f := u.flow(from); f != nil {
			f.toGuest(f.ctx, u.to.Port(), buf[:n])
		}
	}
}

func (f *outerFlow) toGuest(ctx context.Context, port uint16, b []byte) {
	f.touch()
	f.asked.Add(1)
	f.u.g.sendDatagram(ctx, f.back, f.key.port, port, b)
}

// flow returns the flow of an outside sender, or makes it; nil: it cannot. Only udpForward.run calls it.
func (u *udpForward) flow(from netip.AddrPort) *outerFlow {
	u.mu.Lock()
	f := u.flows[from]
	u.mu.Unlock()
	if f != nil {
		return f
	}
	g, guest := u.g, u.to.Addr()
	f = &outerFlow{u: u, sender: from, back: g.routeTo(guest, g.ownAddr(guest))}
	if f.back == nil {
		g.count.unreached.Add(1)
		return nil
	}
	f.backlog.init(g, func(*outgoing) bool { return false }, f.later)
	if !f.begin(g, g.ownerOf(guest), f.close) {
		f.back.Release()
		return nil
	}
	g.flows.mu.Lock()
	port := firstPort + rand.IntN(numPorts)
	for g.flows.forwards[forwardKey{guest, uint16(port)}] != nil { // there are fewer flows than ports
		port = firstPort + (port-firstPort+1)%numPorts
	}
	f.key = forwardKey{guest, uint16(port)}
	if f.ctx.Err() == nil { // otherwise close may have run already
		g.flows.forwards[f.key] = f
	}
	g.flows.mu.Unlock()
	u.mu.Lock()
	defer u.mu.Unlock()
	if f.ctx.Err() == nil {
		u.flows[from] = f
	}
	return f
}

func (f *outerFlow) close() {
	fs := &f.u.g.flows
	fs.mu.Lock()
	if fs.forwards[f.key] == f {
		delete(fs.forwards, f.key)
	}
	fs.mu.Unlock()
	f.u.mu.Lock()
	if f.u.flows[f.sender] == f {
		delete(f.u.flows, f.sender)
	}
	f.u.mu.Unlock()
	f.mu.Lock()
	f.shut()
	extra := f.extra
	f.extra = nil
	f.mu.Unlock()
	closeAll(extra)
	f.back.Release()
}

// answerForward sends a guest's datagram to an address of the gateway on to the outside sender, by the forward's flow
// that has this guest and the destination port; false: there is no such flow.
func (g *Gateway) answerForward(guest, to netip.AddrPort, pkt *stack.PacketBuffer) bool {
	if len(g.o.Forwards) == 0 || !g.isOwn(to.Addr()) {
		return false
	}
	g.flows.mu.Lock()
	f := g.flows.forwards[forwardKey{guest.Addr(), to.Port()}]
	g.flows.mu.Unlock()
	if f == nil {
		return false
	}
	f.touch()
	f.answered.Add(1)
	f.send(outgoing{port: guest.Port(), data: pkt.Data().AsRange().ToSlice()})
	return true
}

func (f *outerFlow) later(d *outgoing) {
	if d.port == f.u.to.Port() {
		_, _ = f.u.host.WriteToUDPAddrPort(d.data, f.sender)
		return
	}
	s, err := f.other(d.port)
	if err != nil {
		f.u.g.count.unreached.Add(1)
	} else if err := s.writeWaiting(f.ctx, d.data); err == unix.EAGAIN || err == unix.ENOBUFS {
		f.u.g.count.udpLost.Add(1)
	}
}

func (f *outerFlow) other(port uint16) (*flowSocket, error) {
	f.mu.Lock()
	for _, s := range f.extra {
		if s.port == port {
			f.mu.Unlock()
			return s, nil
		}
	}
	f.mu.Unlock()
	bufs := f.buffer(f.entry, &f.extra)
	s, err := newFlowSocket(f.ctx, bufs, func(ctx context.Context) (*net.UDPConn, error) {
		return f.u.g.openAnswer(ctx, Answer{Listen: f.u.listen, Sender: f.sender, Buffer: bufs.size})
	})
	if err != nil {
		return nil, err
	}
	s.port = port
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.shutDown {
		s.drop()
		return nil, net.ErrClosed
	}
	f.extra = append(f.extra, s)
	s.start(f.ctx, f.gateway, f)
	return s, nil
}

// heard implements flowReader.
func (f *outerFlow) heard(ctx context.Context, s *flowSocket, _ netip.AddrPort, b []byte) {
	f.toGuest(ctx, s.port, b)
}

// troubled implements flowReader. The guest gets no errors of its answers.
func (f *outerFlow) troubled(*flowSocket, []byte, netip.AddrPort, []byte) {}
