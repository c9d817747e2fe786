package broker

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/internal/peer"
	"vnic.dev/vnic/internal/scm"
)

var le = binary.LittleEndian

type (
	requestHeader struct {
		Op uint32 // index in table (row.go)
		ID uint32 // chosen by the client; the answer repeats it
	}
	answerHeader struct {
		ID    uint32
		Errno uint32 // not 0: the request has failed, and there is no body
	}
)

const (
	headerLen = 8
	maxBody   = 4096 * addrLen // most bytes of an answer's body
)

var errDescriptors = fmt.Errorf("descriptors: %w", unix.EBADF)

func messageSocket(c *net.UnixConn) *scm.Socket {
	return &scm.Socket{UnixConn: c, MaxFDs: 1, Bad: errDescriptors}
}

func header[H any](b []byte) (h H, body []byte, ok bool) {
	if len(b) < headerLen {
		return h, nil, false
	}
	return peer.Decode[H](b), b[headerLen:], true
}

// decode decodes a body, and calls the method check of a type that has one. It refuses (EINVAL) a body that differs
// from the encoding of the decoded value, such as a bool of 2.
func decode[T any](b []byte) (v T, err error) {
	if list, ok := any(&v).(*[]address); ok {
		*list = make([]address, len(b)/addrLen)
	}
	if _, err := binary.Decode(b, le, &v); err != nil || !bytes.Equal(b, peer.Append(nil, v)) {
		return v, unix.EINVAL
	}
	if c, ok := any(&v).(interface{ check() error }); ok {
		err = c.check()
	}
	return v, err
}

// address is an IP address with a port: a byte that is not 0 for IPv4, the port as two bytes, little-endian, and the
// address as 16 bytes (IPv4: an IPv4-mapped IPv6 address). toAddress returns zeros for an invalid address.
type address [addrLen]byte

const addrLen = 19

func toAddress(a netip.AddrPort) (b address) {
	if !a.Addr().IsValid() {
		return b
	}
	if a.Addr().Is4() {
		b[0] = 1
	}
	le.PutUint16(b[1:], a.Port())
	ip := a.Addr().As16()
	copy(b[3:], ip[:])
	return b
}

func (b address) addrPort() netip.AddrPort {
	a := netip.AddrFrom16([16]byte(b[3:]))
	if b[0] != 0 {
		a = a.Unmap()
	}
	return netip.AddrPortFrom(a, le.Uint16(b[1:]))
}
