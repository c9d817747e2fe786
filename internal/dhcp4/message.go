// Package dhcp4 encodes and decodes DHCP messages of Ethernet hosts (RFC 2131; options: RFC 2132 and 3396).
//
// It has the fields and options that our server (internal/wire/gateway) and our client (internal/dhcp) use. Encode
// writes the other fields as zeros, and Decode does not read them. This includes sname and file: options that a sender
// puts there (option overload) are not seen.
//
// Decode accepts untrusted bytes. It does not keep b, and uses memory of at most a small multiple
// of its length.
package dhcp4

import (
	"encoding/binary"
	"fmt"
	"net/netip"
)

// Op is the direction of a message (RFC 2131, 2: op).
type Op uint8

// Directions of messages.
const (
	BootRequest Op = 1
	BootReply   Op = 2
)

// Type is the type of a message (RFC 2132, 9.6).
type Type uint8

// Types of messages; 0 is a message without a type.
const (
	Discover Type = iota + 1
	Offer
	Request
	Decline
	Ack
	Nak
	Release
	Inform
)

// Broadcast is the flag of a client that cannot receive unicast packets yet (RFC 2131, figure 2).
const Broadcast = 0x8000

// Message is a DHCP message. The zero Addr stands for 0.0.0.0; Decode never returns it.
type Message struct {
	Op     Op
	XID    uint32
	Flags  uint16
	Client netip.Addr // ciaddr
	Yours  netip.Addr // yiaddr
	Relay  netip.Addr // giaddr
	MAC    [6]byte    // chaddr

	Options Options
}

// Constants of the header (RFC 2131, figure 1), with the magic cookie before the options (RFC 2131,
// 3).
const (
	headerLen = 240
	minLen    = 300 // of a BOOTP message (RFC 951, 3): some servers and relays drop shorter ones

	ethernet = 1 // htype (RFC 1700, "Hardware Type")
	cookie   = 0x63825363
)

var be = binary.BigEndian

// Decode decodes a message. It refuses a message without an End option, and hardware other than
// Ethernet.
func Decode(b []byte) (*Message, error) {
	if len(b) < headerLen {
		return nil, fmt.Errorf("DHCP message: %d bytes, fewer than its header's %d", len(b), headerLen)
	}
	m := &Message{}
	if err := m.decodeHeader((*[headerLen]byte)(b)); err != nil {
		return nil, fmt.Errorf("DHCP message: %w", err)
	}
	var err error
	if m.Options, err = decodeOptions(b[headerLen:]); err != nil {
		return nil, fmt.Errorf("DHCP message: %w", err)
	}
	return m, nil
}

func (m *Message) decodeHeader(b *[headerLen]byte) error {
	if c := be.Uint32(b[236:]); c != cookie {
		return fmt.Errorf("magic cookie %#x, want %#x", c, cookie)
	}
	if b[1] != ethernet || int(b[2]) != len(m.MAC) {
		return fmt.Errorf("hardware type %d with addresses of %d bytes: not Ethernet", b[1], b[2])
	}
	m.Op, m.XID, m.Flags = Op(b[0]), be.Uint32(b[4:]), be.Uint16(b[10:])
	m.Client, m.Yours, m.Relay = addr(b[12:]), addr(b[16:]), addr(b[24:])
	copy(m.MAC[:], b[28:])
	return nil
}

func (m *Message) encodeHeader(b *[headerLen]byte) {
	b[0], b[1], b[2] = byte(m.Op), ethernet, byte(len(m.MAC))
	be.PutUint32(b[4:], m.XID)
	be.PutUint16(b[10:], m.Flags)
	putAddr(b[12:], m.Client)
	putAddr(b[16:], m.Yours)
	putAddr(b[24:], m.Relay)
	copy(b[28:], m.MAC[:])
	be.PutUint32(b[236:], cookie)
}

// Encode encodes the message, with its options in the order of their codes.
func (m *Message) Encode() []byte {
	b := make([]byte, headerLen, minLen)
	m.encodeHeader((*[headerLen]byte)(b))
	b = m.Options.append(b)
	if n := minLen - len(b); n > 0 {
		b = append(b, make([]byte, n)...) // optPad
	}
	return b
}

// Type returns the message's type, 0 if it has none.
func (m *Message) Type() Type {
	if b := m.Options[MessageType]; len(b) == 1 {
		return Type(b[0])
	}
	return 0
}

func addr(b []byte) netip.Addr { return netip.AddrFrom4([4]byte(b)) }

// putAddr writes an IPv4 address, and 0.0.0.0 for any other.
func putAddr(b []byte, a netip.Addr) {
	if a.Is4() {
		v := a.As4()
		copy(b, v[:])
	}
}
