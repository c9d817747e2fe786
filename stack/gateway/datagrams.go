package gateway

import (
	"fmt"
	"net/netip"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/transport/udp"
	"gvisor.dev/gvisor/pkg/waiter"
)

// Bounds of what waits for a service of the gateway.
const (
	maxWaiting  = 256             // datagrams; a port has no more than a quarter of them
	maxDatagram = maxQuestion + 1 // bytes of one that are kept; services refuse any that are as long
)

// datagram is one that came for a service.
type datagram struct {
	data   []byte
	from   netip.AddrPort
	sender owner // whatever from says
}

// datagramServer is a UDP port of the gateway. It knows which port of the switch sent a datagram: it takes each out of
// its endpoint at once, on the goroutine that brought the frame.
type datagramServer struct {
	conn  *udpConn // to answer by
	ep    tcpip.Endpoint
	g     *Gateway
	quota *quota
	in    chan datagram // of capacity maxWaiting
}

// serveDatagrams has handle get what comes to an address of the gateway, one after the other.
func (g *Gateway) serveDatagrams(at tcpip.FullAddress, proto tcpip.NetworkProtocolNumber,
	handle func(*datagramServer, datagram)) error {
	wq := new(waiter.Queue)
	ep, err := g.ns.NewEndpoint(udp.ProtocolNumber, proto, wq)
	if err != nil {
		return fmt.Errorf("netstack: %s", err)
	}
	s := &datagramServer{conn: newUDPConn(wq, ep), ep: ep, g: g, in: make(chan datagram, maxWaiting),
		quota: newQuota(maxWaiting, maxWaiting/4, &g.count.refused)}
	entry := waiter.NewFunctionEntry(waiter.ReadableEvents, func(waiter.EventMask) { s.drain() })
	wq.EventRegister(&entry) // before it is bound: nothing is to wait in the endpoint
	ep.SocketOptions().SetBroadcast(true)
	if err := ep.Bind(at); err != nil {
		s.conn.Close()
		return fmt.Errorf("port %d: %s", at.Port, err)
	}
	g.serve(func() {
		defer s.conn.Close()
		for {
			select {
			case d := <-s.in:
				s.quota.give(d.sender)
				handle(s, d)
			case <-g.ctx.Done():
				return
			}
		}
	})
	return nil
}

// drain takes everything out of the endpoint. The endpoint calls it when something came and it was empty.
func (s *datagramServer) drain() {
	sender := s.g.port.sender()
	var buf [maxDatagram]byte
	for {
		w := tcpip.SliceWriter(buf[:])
		r, err := s.ep.Read(&w, tcpip.ReadOptions{NeedRemoteAddr: true})
		if err != nil {
			return
		}
		if s.quota.take(sender) { // so there is space in s.in
			s.in <- datagram{append([]byte(nil), buf[:r.Count]...), addrPort(r.RemoteAddr.Addr, r.RemoteAddr.Port), sender}
		}
	}
}

// reply answers a datagram. What is lost is asked again.
func (s *datagramServer) reply(b []byte, to netip.AddrPort) {
	at := fullAddress(to)
	_, _ = s.conn.send(b, &at)
}
