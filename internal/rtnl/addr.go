package rtnl

import (
	"encoding/binary"
	"fmt"
	"net/netip"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// Addr is an address of a link.
type Addr struct {
	IP    netip.Addr
	Flags uint32 // unix.IFA_F_*
}

const addrHeaderLen = unix.SizeofIfAddrmsg // struct ifaddrmsg

// addrHeader encodes struct ifaddrmsg: u8 family, u8 prefixlen, u8 flags, u8 scope, u32 index.
func addrHeader(family uint8, bits int, flags uint8, index int) []byte {
	b := make([]byte, addrHeaderLen)
	b[0], b[1], b[2] = family, uint8(bits), flags
	native.PutUint32(b[4:], uint32(index))
	return b
}

// decodeAddr decodes RTM_NEWADDR.
func decodeAddr(b []byte) (a Addr, index int, err error) {
	attrs, err := attributes(b, addrHeaderLen)
	if err != nil {
		return a, 0, err
	}
	index = int(native.Uint32(b[4:]))
	a.Flags = uint32(b[2])
	var local, address netip.Addr // if they differ, address is the peer's address
	for attrs.Next() {
		switch attrs.Type() {
		case unix.IFA_LOCAL:
			local, _ = netip.AddrFromSlice(attrs.Bytes())
		case unix.IFA_ADDRESS:
			address, _ = netip.AddrFromSlice(attrs.Bytes())
		case unix.IFA_FLAGS: // all 32 bits
			a.Flags = attrs.Uint32()
		}
	}
	if err := attrs.Err(); err != nil {
		return Addr{}, 0, fmt.Errorf("address of link %d: %w", index, err)
	}
	if a.IP = local; !local.IsValid() {
		a.IP = address
	}
	if !a.IP.IsValid() {
		return Addr{}, 0, fmt.Errorf("address of link %d: none in the message: %w", index, unix.EPROTO)
	}
	return a, index, nil
}

// Addrs lists a link's addresses of a family, AF_UNSPEC for all, or returns ErrInterrupted.
func Addrs(index int, family uint8) (addrs []Addr, err error) {
	err = dump(unix.RTM_GETADDR, unix.RTM_NEWADDR, addrHeader(family, 0, 0, 0), func(message []byte) error {
		// A kernel without the family lists the addresses of all families; with AF_UNSPEC, other
		// protocols list theirs too.
		if len(message) > 0 && !wanted(message[0], family) {
			return nil
		}
		a, link, err := decodeAddr(message)
		if err == nil && link == index {
			addrs = append(addrs, a)
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	return addrs, nil
}

func wanted(family, requested uint8) bool {
	return family == requested || requested == unix.AF_UNSPEC && (family == unix.AF_INET || family == unix.AF_INET6)
}

// AddAddr adds an address to a link; the error is EEXIST if the link has it. An IPv6 address can be
// used at once; with dad it is tentative until duplicate address detection has ended (RFC 4862, 5.4).
func AddAddr(index int, p netip.Prefix, dad bool) error {
	var flags uint8
	if p.Addr().Is6() && !dad {
		flags = unix.IFA_F_NODAD
	}
	return changeAddr(unix.RTM_NEWADDR, add, index, p, flags)
}

// RemoveAddr removes an address from a link; the error is EADDRNOTAVAIL if the link does not have it.
func RemoveAddr(index int, p netip.Prefix) error {
	return changeAddr(unix.RTM_DELADDR, 0, index, p, 0)
}

func changeAddr(kind netlink.HeaderType, flag netlink.HeaderFlags, index int, p netip.Prefix, flags uint8) error {
	ip := p.Addr().AsSlice()
	attrs := netlink.NewAttributeEncoder()
	attrs.Bytes(unix.IFA_LOCAL, ip)
	attrs.Bytes(unix.IFA_ADDRESS, ip)
	if p.Addr().Is4() && p.Bits() < 31 { // RFC 3021: longer prefixes have no broadcast address
		broadcast := binary.BigEndian.Uint32(ip) | ^uint32(0)>>p.Bits()
		attrs.Bytes(unix.IFA_BROADCAST, binary.BigEndian.AppendUint32(nil, broadcast))
	}
	return change(kind, flag, addrHeader(family(p.Addr()), p.Bits(), flags, index), attrs)
}

// AddDefaultRoute adds a default route by a gateway, with flags RTNH_F_*; the error is EEXIST if
// the same route exists. Linux removes an IPv4 route together with the link's last IPv4 address.
func AddDefaultRoute(index int, gateway netip.Addr, flags uint32) error {
	// struct rtmsg: u8 family, dst_len, src_len, tos, table, protocol, scope, type, u32 flags
	b := make([]byte, unix.SizeofRtMsg)
	b[0] = family(gateway)
	b[4], b[5], b[6], b[7] = unix.RT_TABLE_MAIN, unix.RTPROT_BOOT, unix.RT_SCOPE_UNIVERSE, unix.RTN_UNICAST
	native.PutUint32(b[8:], flags)
	attrs := netlink.NewAttributeEncoder()
	attrs.Bytes(unix.RTA_GATEWAY, gateway.AsSlice())
	attrs.Uint32(unix.RTA_OIF, uint32(index))
	return change(unix.RTM_NEWROUTE, add, b, attrs)
}

func family(a netip.Addr) uint8 {
	if a.Is4() {
		return unix.AF_INET
	}
	return unix.AF_INET6
}
