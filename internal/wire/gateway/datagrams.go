package gateway

import (
	"fmt"
	"net/netip"
	"sync"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/transport/udp"
	"gvisor.dev/gvisor/pkg/waiter"

	"vnic.dev/vnic/internal/ether"
)

const (
	maxWaiting  = 256                // most datagrams that wait for a service
	maxDatagram = maxUDPQuestion + 1 // bytes kept of a datagram, one more than DNS accepts
)

type datagram struct {
	data   []byte
	from   netip.AddrPort
	sender owner
}

// datagramServer is a UDP port of the gateway. It takes each datagram out of its endpoint on port.run's
// goroutine, while netstack processes the frame: so port.sender is the datagram's sender.
type datagramServer struct {
	conn *udpConn
	g    *Gateway
	in   waiting
}

// waiting holds datagrams for a service, which serves their senders in turn.
type waiting struct {
	filled chan struct{} // capacity 1: push has added datagrams

	mu     sync.Mutex
	shares shares[datagram]
}

// refused: there is no room for the datagram; evicted: push removed a datagram of another sender.
func (w *waiting) push(d datagram) (refused, evicted bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.shares.n >= w.shares.all {
		from, ok := w.shares.giver(d.sender)
		if !ok {
			return true, false
		}
		evicted = true
		w.shares.remove(from, 0)
	}
	w.shares.add(d.sender, d)
	ether.Signal(w.filled)
	return false, evicted
}

func (w *waiting) pop() (d datagram, ok bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.shares.next()
}

// serveDatagrams opens a UDP port of the gateway, and starts a goroutine that calls handle for its datagrams, but for
// datagrams that waiting.push refused or removed.
func (g *Gateway) serveDatagrams(addr tcpip.FullAddress, proto tcpip.NetworkProtocolNumber,
	handle func(*datagramServer, datagram)) error {
	wq := new(waiter.Queue)
	ep, err := g.ns.NewEndpoint(udp.ProtocolNumber, proto, wq)
	if err != nil {
		return fmt.Errorf("netstack: %s", err)
	}
	s := &datagramServer{conn: newUDPConn(wq, ep), g: g,
		in: waiting{filled: make(chan struct{}, 1), shares: newShares[datagram](maxWaiting)}}
	entry := waiter.NewFunctionEntry(waiter.ReadableEvents, func(waiter.EventMask) { s.drain() })
	wq.EventRegister(&entry) // before Bind, so that no datagram stays in the endpoint
	ep.SocketOptions().SetBroadcast(true)
	if err := ep.Bind(addr); err != nil {
		s.conn.Close()
		return fmt.Errorf("port %d: %s", addr.Port, err)
	}
	g.serve(func() {
		defer s.conn.Close()
		for {
			if d, ok := s.in.pop(); ok {
				handle(s, d)
				continue
			}
			select {
			case <-s.in.filled:
			case <-g.ctx.Done():
				return
			}
		}
	})
	return nil
}

func (s *datagramServer) drain() {
	sender := s.g.port.sender()
	var buf [maxDatagram]byte
	for {
		w := tcpip.SliceWriter(buf[:])
		r, err := s.conn.ep.Read(&w, tcpip.ReadOptions{NeedRemoteAddr: true})
		if err != nil {
			return
		}
		d := datagram{append([]byte(nil), buf[:r.Count]...), addrPort(r.RemoteAddr.Addr, r.RemoteAddr.Port), sender}
		switch refused, evicted := s.in.push(d); {
		case refused:
			s.g.count.refused.Add(1)
		case evicted:
			s.g.count.evicted.Add(1)
		}
	}
}

func (s *datagramServer) reply(b []byte, to netip.AddrPort) {
	addr := fullAddress(to)
	_, _ = s.conn.send(b, &addr)
}
