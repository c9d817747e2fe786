package gateway

import (
	"context"
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"time"

	"golang.org/x/net/dns/dnsmessage"
	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"

	"vnic.dev/vnic/stack/internal/ether"
)

const (
	maxQuestions = 128              // that are forwarded at one time
	maxDNSConns  = 32               // connections for questions
	dnsIdle      = 10 * time.Second // that such a connection may be silent
	maxQuestion  = 4096             // bytes
)

// dnsServer is what the gateway's DNS services share.
type dnsServer struct {
	g     *Gateway
	asked *quota // of questions that are forwarded
	conns *quota // of connections
}

// startDNS serves DNS on each of the gateway's addresses.
func (g *Gateway) startDNS() error {
	s := &dnsServer{g: g, asked: newQuota(maxQuestions, maxQuestions/4, &g.count.refused),
		conns: newQuota(maxDNSConns, maxDNSConns/4, &g.count.refused)}
	for _, p := range []netip.Prefix{g.o.Prefix4, g.o.Prefix6} {
		if !p.IsValid() {
			continue
		}
		at := fullAddress(netip.AddrPortFrom(p.Addr(), portDNS))
		c, err := gonet.DialUDP(g.ns, &at, nil, ether.Protocol(p.Addr()))
		if err != nil {
			return fmt.Errorf("dns: %w", err)
		}
		g.serve(func() { s.datagrams(c) })
		l, err := gonet.ListenTCP(g.ns, at, ether.Protocol(p.Addr()))
		if err != nil {
			return fmt.Errorf("dns: %w", err)
		}
		context.AfterFunc(g.ctx, l.Shutdown)
		g.serve(func() { s.listen(l) })
	}
	return nil
}

// datagrams answers questions over UDP.
func (s *dnsServer) datagrams(c *gonet.UDPConn) {
	defer c.Close()
	buf := make([]byte, 64<<10)
	for {
		n, from, err := c.ReadFrom(buf)
		if err != nil {
			return
		}
		reply := func(b []byte) { _, _ = c.WriteTo(b, from) } // what is lost is asked again
		if b, forward := s.answer(buf[:n]); b != nil {
			reply(b)
		} else if forward != nil {
			s.begin(forward, guestOf(from), reply)
		}
	}
}

// guestOf is the guest at the other end.
func guestOf(a net.Addr) netip.Addr {
	if a == nil { // it is gone
		return netip.Addr{}
	}
	ap, _ := netip.ParseAddrPort(a.String())
	return ap.Addr().Unmap()
}

// begin has a question forwarded on a goroutine of its own, if there are not too many.
func (s *dnsServer) begin(q *question, guest netip.Addr, reply func([]byte)) {
	if !s.asked.take(guest) {
		reply(s.refuse(&q.header, &q.q, dnsmessage.RCodeServerFailure))
		return
	}
	if !s.g.serve(func() {
		defer s.asked.give(guest)
		reply(s.ask(q, "udp"))
	}) {
		s.asked.give(guest)
	}
}

// listen answers questions over TCP (RFC 7766).
func (s *dnsServer) listen(l *gonet.TCPListener) {
	defer l.Close()
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		guest := guestOf(c.RemoteAddr())
		if !s.conns.take(guest) {
			c.Close()
			continue
		}
		began := s.g.serve(func() {
			defer s.conns.give(guest)
			stop := context.AfterFunc(s.g.ctx, func() { _ = c.SetDeadline(time.Now()) })
			defer stop()
			defer c.Close()
			s.stream(c)
		})
		if !began {
			s.conns.give(guest)
			c.Close()
		}
	}
}

// stream answers the questions of a connection, one after the other.
func (s *dnsServer) stream(c net.Conn) {
	buf := make([]byte, maxQuestion)
	for s.g.ctx.Err() == nil {
		_ = c.SetDeadline(time.Now().Add(dnsIdle))
		n, err := readMessage(c, "tcp", buf)
		if err != nil {
			return
		}
		b, forward := s.answer(buf[:n])
		if forward != nil {
			b = s.ask(forward, "tcp")
		}
		if b == nil || len(b) > 0xffff {
			return
		}
		if _, err := c.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(b))), b...)); err != nil {
			return
		}
	}
}

// question is one to forward.
type question struct {
	header dnsmessage.Header
	q      dnsmessage.Question
	raw    []byte // the whole message
}

// answer answers a message, or says what is to be forwarded. If it does neither, the message deserves nothing.
func (s *dnsServer) answer(b []byte) ([]byte, *question) {
	s.g.count.queries.Add(1)
	var p dnsmessage.Parser
	h, err := p.Start(b)
	if err != nil || h.Response {
		s.g.count.badQueries.Add(1)
		return nil, nil
	}
	if h.OpCode != 0 {
		return s.refuse(&h, nil, dnsmessage.RCodeNotImplemented), nil
	}
	qs, err := p.AllQuestions()
	if err != nil || len(qs) != 1 || len(b) > maxQuestion {
		return s.refuse(&h, nil, dnsmessage.RCodeFormatError), nil
	}
	if qs[0].Class == dnsmessage.ClassINET || qs[0].Class == dnsmessage.ClassANY {
		if out := s.g.names.answer(&h, &qs[0]); out != nil {
			return out, nil
		}
	}
	if !s.g.o.NAT { // nothing leaves this network
		return s.refuse(&h, &qs[0], dnsmessage.RCodeRefused), nil
	}
	return nil, &question{header: h, q: qs[0], raw: append([]byte(nil), b...)}
}

func (s *dnsServer) refuse(h *dnsmessage.Header, q *dnsmessage.Question, code dnsmessage.RCode) []byte {
	s.g.count.badQueries.Add(1)
	return fail(h, q, code)
}
