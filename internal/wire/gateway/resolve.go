package gateway

import (
	"bufio"
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"strings"
	"time"

	"golang.org/x/net/dns/dnsmessage"
)

// Limits of resolv.conf(5); the ones of the search list are of glibc before 2.26.
const (
	maxResolvers = 3
	maxSearch    = 6
	maxSearchLen = 256 // characters, with one after each domain
)

const resolvConf = "/etc/resolv.conf"

var errNotTheAnswer = errors.New("not an answer to this question")

func hostResolvers() []netip.AddrPort { return fromResolvConf(readResolvers) }

// fromResolvConf returns what read finds in this machine's resolv.conf; nil: it cannot be opened.
func fromResolvConf[T any](read func(io.Reader) []T) []T {
	f, err := os.Open(resolvConf)
	if err != nil {
		return nil
	}
	defer f.Close()
	return read(f)
}

func readResolvers(r io.Reader) (found []netip.AddrPort) {
	for lines := bufio.NewScanner(r); lines.Scan() && len(found) < maxResolvers; {
		if f := strings.Fields(lines.Text()); len(f) >= 2 && f[0] == "nameserver" {
			if a, err := netip.ParseAddr(f[1]); err == nil {
				found = append(found, netip.AddrPortFrom(a, portDNS))
			}
		}
	}
	return found
}

func (s *dnsServer) ask(ctx context.Context, q *question, network string) []byte {
	s.g.count.forwarded.Add(1)
	for _, r := range s.g.resolvers() {
		p, no := s.g.o.Policy.checkResolver(r)
		if no != nil {
			s.g.refuse(q.owner, q.from, no)
			continue
		}
		if b, err := s.g.askOne(ctx, q, network, p); err == nil {
			binary.BigEndian.PutUint16(b, q.header.ID)
			return b
		}
	}
	return s.refuse(&q.header, &q.q, dnsmessage.RCodeServerFailure)
}

// askOne asks one resolver with a random ID, because the guest's may be easy to guess. The returned answer has the
// random ID.
func (g *Gateway) askOne(ctx context.Context, q *question, network string, to permit) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, g.askTime)
	defer cancel()
	c, err := g.dialResolver(ctx, network, to)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	stop := context.AfterFunc(ctx, func() { _ = c.SetDeadline(time.Now()) })
	defer stop()
	msg := append(make([]byte, 2, 2+len(q.raw)), q.raw...)
	binary.BigEndian.PutUint16(msg, uint16(len(q.raw)))
	_, _ = rand.Read(msg[2:4])
	id := binary.BigEndian.Uint16(msg[2:])
	if network == "udp" {
		msg = msg[2:]
	}
	if _, err := c.Write(msg); err != nil {
		return nil, err
	}
	buf := make([]byte, 64<<10)
	for {
		n, err := readMessage(c, network, buf)
		if err != nil {
			return nil, err
		}
		if answers(buf[:n], id, &q.q) {
			return buf[:n], nil
		}
		if network != "udp" { // over UDP it reads on, because the datagram may be forged
			return nil, errNotTheAnswer
		}
	}
}

// readMessage reads a DNS message into buf. Over TCP a message longer than buf is an error; over UDP it is cut.
func readMessage(c net.Conn, network string, buf []byte) (int, error) {
	if network == "udp" {
		return c.Read(buf)
	}
	if _, err := io.ReadFull(c, buf[:2]); err != nil {
		return 0, err
	}
	n := int(binary.BigEndian.Uint16(buf))
	if n > len(buf) {
		return 0, io.ErrShortBuffer
	}
	return io.ReadFull(c, buf[:n])
}

func answers(b []byte, id uint16, q *dnsmessage.Question) bool {
	var p dnsmessage.Parser
	h, err := p.Start(b)
	if err != nil || !h.Response || h.ID != id {
		return false
	}
	got, err := p.Question()
	if errors.Is(err, dnsmessage.ErrSectionDone) { // some error responses lack the question
		return h.RCode != dnsmessage.RCodeSuccess
	}
	return err == nil && got.Type == q.Type && got.Class == q.Class &&
		strings.EqualFold(got.Name.String(), q.Name.String())
}
