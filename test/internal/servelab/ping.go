package servelab

import (
	"bytes"
	"fmt"
	"net"
	"time"

	"golang.org/x/net/icmp"
	"golang.org/x/net/ipv4"
)

func ping(a *args) error {
	c, err := icmp.ListenPacket("ip4:icmp", "0.0.0.0")
	if err != nil {
		return err
	}
	defer c.Close()
	ask := icmp.Message{Type: ipv4.ICMPTypeEcho, Body: &icmp.Echo{ID: 7, Seq: int(a.Bytes), Data: stuff(a.Bytes)}}
	b, err := ask.Marshal(nil)
	if err != nil {
		return err
	}
	if _, err := c.WriteTo(b, &net.IPAddr{IP: net.ParseIP(a.Addr)}); err != nil {
		return err
	}
	_ = c.SetReadDeadline(time.Now().Add(patience))
	in := make([]byte, len(b)+60) // room for the IPv4 header, too, which ReadFrom removes
	for {
		n, from, err := c.ReadFrom(in)
		if err != nil {
			return fmt.Errorf("no answer from %s: %w", a.Addr, err)
		}
		// The answer's type and checksum, in the first four bytes, differ from the request's.
		if from.String() == a.Addr && n >= 8 && in[0] == byte(ipv4.ICMPTypeEchoReply) {
			if n != len(b) || !bytes.Equal(in[4:n], b[4:]) {
				return fmt.Errorf("%d bytes came back changed", a.Bytes)
			}
			return nil
		}
	}
}
