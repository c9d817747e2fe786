package rxepeer

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"
)

// Port is the UDP port of RoCEv2.
const Port = 4791

// Frame is a packet of RoCEv2 (IBTA, annex A17).
type Frame struct {
	Src, Dst netip.Addr
	Opcode   byte // IBTA table 38; reliable connections have 0x00 to 0x1f
	Ack      bool // the sender asks for an acknowledgement
	DestQP   uint32
	PSN      uint32
	Body     []byte // bytes after the BTH: extended headers, payload, pad
	Pad      int    // bytes of padding at the end of Body, as the BTH counts them
	ICRC     uint32 // the invariant CRC in the frame
	Sum      uint32 // the invariant CRC computed from the frame; in an undamaged frame it equals ICRC
}

// ErrNotRoCE means that a frame is not a packet of RoCEv2, or has a VLAN tag, IPv4 options or IPv6
// extension headers.
var ErrNotRoCE = errors.New("not RoCEv2")

// Sizes of headers, and of a packet's trailer, in bytes.
const (
	ethLen  = 14
	ip4Len  = 20
	ip6Len  = 40
	udpLen  = 8
	bthLen  = 12
	icrcLen = 4
)

// ParseFrame parses an Ethernet frame, and does not compare its ICRC. The result does not refer to b. Errors:
// ErrNotRoCE.
func ParseFrame(b []byte) (f Frame, err error) {
	var be = binary.BigEndian
	if len(b) < ethLen {
		return f, ErrNotRoCE
	}
	proto := be.Uint16(b[12:])
	p := slices.Clone(b[ethLen:]) // from the IP header on; fields that the ICRC masks become ones
	var n, length int             // of the IP header; of the packet from there on
	switch {
	case proto == unix.ETH_P_IP && len(p) >= ip4Len && p[0] == 0x45 && p[9] == unix.IPPROTO_UDP:
		n, length = ip4Len, int(be.Uint16(p[2:]))
		f.Src, f.Dst = netip.AddrFrom4([4]byte(p[12:16])), netip.AddrFrom4([4]byte(p[16:20]))
		p[1], p[8], p[10], p[11] = 0xff, 0xff, 0xff, 0xff // TOS, TTL, checksum
	case proto == unix.ETH_P_IPV6 && len(p) >= ip6Len && p[6] == unix.IPPROTO_UDP:
		n, length = ip6Len, ip6Len+int(be.Uint16(p[4:]))
		f.Src, f.Dst = netip.AddrFrom16([16]byte(p[8:24])), netip.AddrFrom16([16]byte(p[24:40]))
		p[0], p[1], p[2], p[3], p[7] = p[0]|0x0f, 0xff, 0xff, 0xff, 0xff // traffic class and flow label; hop limit
	default:
		return f, ErrNotRoCE
	}
	if length > len(p) || length < n+udpLen+bthLen+icrcLen || be.Uint16(p[n+2:]) != Port {
		return f, ErrNotRoCE
	}
	if l := int(be.Uint16(p[n+4:])); l != length-n {
		return f, fmt.Errorf("%w: %d bytes of UDP in a packet of %d", ErrNotRoCE, l, length)
	}
	p = p[:length]
	p[n+6], p[n+7] = 0xff, 0xff // UDP's checksum
	bth := p[n+udpLen:]
	f.Opcode, f.Pad, f.Ack = bth[0], int(bth[1]>>4&3), bth[8]&0x80 != 0
	f.DestQP, f.PSN = be.Uint32(bth[4:])&0xffffff, be.Uint32(bth[8:])&0xffffff
	f.Body = slices.Clone(bth[bthLen : len(bth)-icrcLen])
	bth[4] = 0xff // resv8a
	f.ICRC = binary.LittleEndian.Uint32(p[length-icrcLen:])
	// The CRC begins with 8 bytes of ones in place of InfiniBand's local header.
	sum := crc32.ChecksumIEEE([]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff})
	f.Sum = crc32.Update(sum, crc32.IEEETable, p[:length-icrcLen])
	return f, nil
}

// opcodes has the names of a reliable connection's opcodes 0x00 to 0x11, by opcode.
var opcodes = []string{"SEND first", "SEND middle", "SEND last", "SEND last with immediate", "SEND only",
	"SEND only with immediate", "WRITE first", "WRITE middle", "WRITE last", "WRITE last with immediate", "WRITE only",
	"WRITE only with immediate", "READ request", "READ response first", "READ response middle", "READ response last",
	"READ response only", "acknowledge"}

// Name returns the name of the opcode, or, for opcodes above 0x11, a text with its number.
func (f *Frame) Name() string {
	if int(f.Opcode) < len(opcodes) {
		return opcodes[f.Opcode]
	}
	return fmt.Sprintf("opcode %#02x", f.Opcode)
}
