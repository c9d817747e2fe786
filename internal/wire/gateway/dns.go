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
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
	"gvisor.dev/gvisor/pkg/waiter"

	"vnic.dev/vnic/internal/ether"
)

const (
	maxQuestions = 128 // over UDP, forwarded at a time
	maxDNSConns  = 32
	dnsIdle      = 10 * time.Second // for a question to come over TCP and to be answered

	maxUDPQuestion = 4096      // bytes
	maxTCPQuestion = 1<<16 - 1 // the most that the length field holds (RFC 7766, 8)
)

type dnsServer struct {
	g     *Gateway
	asked *quota
	conns *quota
}

func (g *Gateway) startDNS() error {
	s := &dnsServer{g: g, asked: newQuota(maxQuestions, &g.count), conns: newQuota(maxDNSConns, &g.count)}
	g.dns = s
	for _, p := range []netip.Prefix{g.o.Prefix4, g.o.Prefix6} {
		if !p.IsValid() {
			continue
		}
		addr := fullAddress(netip.AddrPortFrom(p.Addr(), portDNS))
		if err := g.serveDatagrams(addr, ether.Protocol(p.Addr()), s.datagram); err != nil {
			return fmt.Errorf("dns: %w", err)
		}
	}
	return nil
}

func (s *dnsServer) datagram(server *datagramServer, d datagram) {
	if b, forward := s.answer(d.data, maxUDPQuestion); b != nil {
		server.reply(b, d.from)
	} else if forward != nil {
		forward.owner, forward.from = d.sender, d.from
		s.begin(forward, func(b []byte) { server.reply(b, d.from) })
	}
}

func (s *dnsServer) begin(q *question, reply func([]byte)) {
	ctx, end := context.WithCancel(s.g.ctx)
	entry := s.asked.take(q.owner, end)
	if entry == nil {
		end()
		reply(s.refuse(&q.header, &q.q, dnsmessage.RCodeServerFailure))
		return
	}
	if !s.g.serve(func() {
		defer end()
		defer entry.give()
		reply(s.ask(ctx, q, "udp"))
	}) {
		end()
		entry.give()
	}
}

func (s *dnsServer) serves(a netip.AddrPort) bool {
	return a.Port() == portDNS && (a.Addr() == s.g.o.Prefix4.Addr() || a.Addr() == s.g.o.Prefix6.Addr())
}

// connection makes a TCP connection that a guest asks for, and answers the questions on it (RFC 7766); beyond the
// limits it resets the connection. It calls made when the handshake has succeeded.
func (s *dnsServer) connection(ctx context.Context, r *tcp.ForwarderRequest, o owner, made func()) {
	ctx, end := context.WithCancel(ctx)
	defer end()
	if !s.g.unfinished.room(o) {
		s.g.count.refused.Add(1)
		r.Complete(true)
		return
	}
	entry := s.conns.take(o, end)
	if entry == nil {
		r.Complete(true)
		return
	}
	defer entry.give()
	id := r.ID()
	wq := new(waiter.Queue)
	ep, err := s.g.handshake(ctx, r, wq)
	r.Complete(err != nil)
	if err != nil {
		s.g.count.unreached.Add(1)
		return
	}
	made()
	bufs := s.g.buffers.take(o, maxTCP, 2) // the least size
	bufs.set(ep)
	c := gonet.NewTCPConn(wq, ep)
	stop := context.AfterFunc(ctx, func() { _ = c.SetDeadline(time.Now()) })
	defer stop()
	defer func() {
		c.Close()
		s.g.unfinished.add(o, ep, bufs)
	}()
	s.stream(ctx, c, o, addrPort(id.RemoteAddress, id.RemotePort))
}

func (s *dnsServer) stream(ctx context.Context, c net.Conn, o owner, from netip.AddrPort) {
	buf := make([]byte, maxTCPQuestion)
	for {
		_ = c.SetDeadline(time.Now().Add(dnsIdle))
		if ctx.Err() != nil { // the line above may have overwritten the deadline set at ctx's end
			return
		}
		n, err := readMessage(c, "tcp", buf)
		if err != nil {
			return
		}
		b, forward := s.answer(buf[:n], maxTCPQuestion)
		if forward != nil {
			forward.owner, forward.from = o, from
			b = s.ask(ctx, forward, "tcp")
		}
		if b == nil || len(b) > 0xffff {
			return
		}
		if _, err := c.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(b))), b...)); err != nil {
			return
		}
	}
}

type question struct {
	header dnsmessage.Header
	q      dnsmessage.Question
	raw    []byte
	owner  owner
	from   netip.AddrPort
}

// answer returns the answer to a message, or the question to forward, or neither.
func (s *dnsServer) answer(b []byte, most int) ([]byte, *question) {
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
	if len(b) >= 6 && binary.BigEndian.Uint16(b[4:]) != 1 {
		return s.refuse(&h, nil, dnsmessage.RCodeFormatError), nil
	}
	qs, err := p.AllQuestions()
	if err != nil || len(qs) != 1 || len(b) > most {
		return s.refuse(&h, nil, dnsmessage.RCodeFormatError), nil
	}
	if qs[0].Class == dnsmessage.ClassINET || qs[0].Class == dnsmessage.ClassANY {
		if out := s.g.names.answer(&h, &qs[0]); out != nil {
			return out, nil
		}
	}
	if !s.g.o.NAT { // no question leaves this network
		return s.refuse(&h, &qs[0], dnsmessage.RCodeRefused), nil
	}
	return nil, &question{header: h, q: qs[0], raw: append([]byte(nil), b...)}
}

func (s *dnsServer) refuse(h *dnsmessage.Header, q *dnsmessage.Question, code dnsmessage.RCode) []byte {
	s.g.count.badQueries.Add(1)
	return fail(h, q, code)
}
