package main

import (
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"time"

	"golang.org/x/net/icmp"
	"golang.org/x/net/ipv4"
	"golang.org/x/net/ipv6"
)

// echo sends pings until an answer or "destination unreachable" comes from any address, and sends none once patience
// has passed.
func (p *prober) echo(to string, v6 bool) (from net.Addr, m *icmp.Message, err error) {
	network, proto, local, typ := "ip4:icmp", 1, "0.0.0.0", icmp.Type(ipv4.ICMPTypeEcho)
	if v6 {
		network, proto, local, typ = "ip6:ipv6-icmp", 58, "::", ipv6.ICMPTypeEchoRequest
	}
	c, err := icmp.ListenPacket(network, local)
	if err != nil {
		return nil, nil, err
	}
	defer c.Close()
	deadline := time.Now().Add(patience)
	b := make([]byte, 1500)
	for seq := 1; time.Now().Before(deadline); seq++ {
		ask := icmp.Message{Type: typ, Body: &icmp.Echo{ID: 7, Seq: seq, Data: []byte("gatewayrows")}}
		q, err := ask.Marshal(nil)
		if err != nil {
			return nil, nil, err
		}
		if _, err := c.WriteTo(q, &net.IPAddr{IP: net.ParseIP(to)}); err != nil {
			return nil, nil, err
		}
		_ = c.SetReadDeadline(time.Now().Add(patience / 5))
		for {
			n, from, err := c.ReadFrom(b)
			if err != nil {
				break
			}
			m, err := icmp.ParseMessage(proto, b[:n])
			if err != nil {
				continue
			}
			switch m.Type {
			case ipv4.ICMPTypeEchoReply, ipv6.ICMPTypeEchoReply, ipv4.ICMPTypeDestinationUnreachable,
				ipv6.ICMPTypeDestinationUnreachable:
				return from, m, nil
			}
		}
	}
	return nil, nil, errors.New("no answer")
}

func (p *prober) pinged(to string, v6 bool) error {
	from, m, err := p.echo(to, v6)
	switch {
	case err != nil:
		return err
	case m.Type != ipv4.ICMPTypeEchoReply && m.Type != ipv6.ICMPTypeEchoReply:
		return fmt.Errorf("%v, code %d", m.Type, m.Code)
	case from.String() != to:
		return fmt.Errorf("an answer from %v", from)
	}
	return nil
}

func (p *prober) ping() (string, string, error) {
	if err := p.ask("/ping", nil, nil); err != nil {
		return "", "", err
	}
	return "yes", "answered by the host itself", p.pinged(p.world, false)
}

// pingRefused pings while the gateway's machine allows no sockets for pings: it runs before ping.
func (p *prober) pingRefused() (string, string, error) {
	from, m, err := p.echo(p.world, false)
	if err != nil {
		return "", "", err
	}
	if m.Type != ipv4.ICMPTypeDestinationUnreachable || m.Code != 13 || from.String() != p.router.String() {
		return "", "", fmt.Errorf("%v, code %d, from %v", m.Type, m.Code, from)
	}
	return "yes", "administratively prohibited", nil
}

func (p *prober) traceroute() (string, string, error) {
	errs, err := icmp.ListenPacket("ip4:icmp", "0.0.0.0")
	if err != nil {
		return "", "", err
	}
	defer errs.Close()
	c, err := net.ListenUDP("udp4", nil)
	if err != nil {
		return "", "", err
	}
	defer c.Close()
	var path []string
	b := make([]byte, 1500)
	for ttl := 1; ttl <= 3; ttl++ {
		if err := ipv4.NewConn(c).SetTTL(ttl); err != nil {
			return "", "", err
		}
		hop := "nobody"
		for try := 0; try < 3 && hop == "nobody"; try++ {
			if _, err := c.WriteTo([]byte("x"), &net.UDPAddr{IP: net.ParseIP(p.world), Port: closedPort - ttl}); err != nil {
				return "", "", err
			}
			_ = errs.SetReadDeadline(time.Now().Add(patience / 3))
			if n, from, err := errs.ReadFrom(b); err == nil {
				if m, err := icmp.ParseMessage(1, b[:n]); err == nil {
					hop = fmt.Sprintf("%v (%v)", from, m.Type)
				}
			}
		}
		path = append(path, hop)
	}
	want := []string{p.router.String() + " (time exceeded)", router + " (time exceeded)",
		p.world + " (destination unreachable)"}
	if !slices.Equal(path, want) {
		return "", "", fmt.Errorf("%s, not %s", strings.Join(path, ", "), strings.Join(want, ", "))
	}
	return "yes", strings.Join(path, ", "), nil
}
