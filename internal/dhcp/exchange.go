package dhcp

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"time"

	"vnic.dev/vnic/internal/dhcp4"
	"vnic.dev/vnic/internal/limits"
)

// conn writes DHCP messages to the servers of a network, and reads datagrams to the client's port.
type conn interface {
	io.ReadWriteCloser
	SetReadDeadline(time.Time) error
}

// How often a client asks, and how long it waits for the first answer; each later wait is twice as
// long, 5 s in all for each of the two messages. A server on the same machine needs milliseconds.
const (
	tries = 5
	wait  = limits.Lease
)

// maxMessage is the longest message that we accept: the client's MTU may be only Ethernet's.
const maxMessage = 1500

// client is a client in one exchange with the servers; the exchange has one transaction ID.
type client struct {
	conn conn
	wait time.Duration // for the first answer to a message
	mac  [6]byte
	xid  uint32
	buf  [maxMessage]byte
}

// lease gets an acknowledgement by DISCOVER, OFFER, REQUEST and ACK (RFC 2131, 3.1).
func (c *client) lease(ctx context.Context) (*dhcp4.Message, error) {
	c.xid = rand.Uint32() // it need only differ from other clients' (RFC 2131, 4.1)
	offer, err := c.exchange(ctx, c.message(dhcp4.Discover), func(m *dhcp4.Message) bool {
		return m.Type() == dhcp4.Offer
	})
	if err != nil {
		return nil, err
	}
	chosen, _ := offer.Options.Addr(dhcp4.ServerID)
	answer, err := c.exchange(ctx, c.request(offer), func(m *dhcp4.Message) bool {
		server, _ := m.Options.Addr(dhcp4.ServerID)
		return server == chosen && (m.Type() == dhcp4.Ack || m.Type() == dhcp4.Nak)
	})
	if err != nil {
		return nil, err
	}
	if answer.Type() == dhcp4.Nak {
		if text := answer.Options[dhcp4.ErrorMessage]; len(text) > 0 {
			return nil, fmt.Errorf("server rejected request with Nak (msg: %s)", text)
		}
		return nil, errors.New("server rejected request with Nak")
	}
	return answer, nil
}

// message makes a message to the servers (RFC 2131, table 5). It asks for broadcast answers,
// because we have no address yet.
func (c *client) message(kind dhcp4.Type) *dhcp4.Message {
	return &dhcp4.Message{Op: dhcp4.BootRequest, XID: c.xid, Flags: dhcp4.Broadcast, MAC: c.mac, Options: dhcp4.Options{
		dhcp4.MessageType:    {byte(kind)},
		dhcp4.MaxMessageSize: binary.BigEndian.AppendUint16(nil, maxMessage),
		dhcp4.ParameterList: {byte(dhcp4.SubnetMask), byte(dhcp4.Router), byte(dhcp4.DomainName), byte(dhcp4.DNS),
			byte(dhcp4.HostName), byte(dhcp4.InterfaceMTU)},
	}}
}

// request makes the message that accepts an offer.
func (c *client) request(offer *dhcp4.Message) *dhcp4.Message {
	m := c.message(dhcp4.Request)
	m.Options[dhcp4.RequestedAddress] = offer.Yours.AsSlice()
	if id := offer.Options[dhcp4.ServerID]; id != nil {
		m.Options[dhcp4.ServerID] = id
	}
	return m
}

// exchange sends a message repeatedly until accept accepts an answer.
func (c *client) exchange(ctx context.Context, m *dhcp4.Message, accept func(*dhcp4.Message) bool) (*dhcp4.Message,
	error) {
	b := m.Encode()
	for n := range tries {
		if _, err := c.conn.Write(b); err != nil {
			return nil, err
		}
		a, err := c.receive(ctx, c.wait<<n, accept)
		if !errors.Is(err, os.ErrDeadlineExceeded) {
			return a, err
		}
	}
	return nil, ErrNoAnswer
}

// receive reads until accept accepts an answer to this client. It ignores all other packets.
func (c *client) receive(ctx context.Context, wait time.Duration, accept func(*dhcp4.Message) bool) (*dhcp4.Message,
	error) {
	if err := c.conn.SetReadDeadline(time.Now().Add(wait)); err != nil {
		return nil, err
	}
	// AfterFunc follows SetReadDeadline, which would replace the deadline by which ctx ends the read.
	stop := context.AfterFunc(ctx, func() { _ = c.conn.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	for {
		n, err := c.conn.Read(c.buf[:])
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		if err != nil {
			return nil, err
		}
		m, err := dhcp4.Decode(c.buf[:n])
		if err == nil && m.Op == dhcp4.BootReply && m.XID == c.xid && m.MAC == c.mac && accept(m) {
			return m, nil
		}
	}
}
