package gateway

import "net/netip"

// maxLayers bounds the length of the result of layers.
const maxLayers = 8

// embedded are the prefixes of IPv6 addresses with an embedded IPv4 address, to which a router or translator
// may send the packet. Each function of extract reads a place where the IPv4 address may be.
var embedded = []struct {
	prefix  netip.Prefix
	extract []func(b *[16]byte) [4]byte
}{
	{netip.MustParsePrefix("::ffff:0:0/96"), low},   // IPv4-mapped (RFC 4291, 2.5.5.2)
	{netip.MustParsePrefix("::/96"), low},           // IPv4-compatible (RFC 4291, 2.5.5.1)
	{netip.MustParsePrefix("::ffff:0:0:0/96"), low}, // IPv4-translated (RFC 2765, 2.1)
	{netip.MustParsePrefix("64:ff9b::/96"), low},    // NAT64 (RFC 6052, 2.1)
	// NAT64 with a prefix of the network's own (RFC 8215), of 48, 56, 64 or 96 bits (RFC 6052, 2.2)
	{ownNAT64, append([]func(*[16]byte) [4]byte{octets(6, 7, 9, 10), octets(7, 9, 10, 11),
		octets(9, 10, 11, 12)}, low...)},
	{netip.MustParsePrefix("2002::/16"), []func(*[16]byte) [4]byte{octets(2, 3, 4, 5)}}, // 6to4 (RFC 3056, 2)
	// Teredo (RFC 4380, 4): the server, and the client with its bits flipped
	{netip.MustParsePrefix("2001::/32"), []func(*[16]byte) [4]byte{octets(4, 5, 6, 7), func(b *[16]byte) [4]byte {
		return [4]byte{^b[12], ^b[13], ^b[14], ^b[15]}
	}}},
}

// ownNAT64 is the prefix of addresses with the IPv4 address at one of several places. Of the IPv4 addresses at these
// places layers leaves out reserved ones: no translator would send a packet there.
var ownNAT64 = netip.MustParsePrefix("64:ff9b:1::/48")

var low = []func(*[16]byte) [4]byte{octets(12, 13, 14, 15)}

func octets(i, j, k, l int) func(*[16]byte) [4]byte {
	return func(b *[16]byte) [4]byte { return [4]byte{b[i], b[j], b[k], b[l]} }
}

// layers returns the addresses that an address stands for: first itself, without its zone, then the IPv4 addresses
// embedded in it.
func layers(a netip.Addr) []netip.Addr {
	list := append(make([]netip.Addr, 0, maxLayers), a.WithZone(""))
	if !a.Is6() || a.IsUnspecified() || a.IsLoopback() { // :: and ::1 are not IPv4-compatible
		return list
	}
	b := a.As16()
	for _, e := range embedded {
		if !e.prefix.Contains(list[0]) {
			continue
		}
		for _, extract := range e.extract {
			if v4 := netip.AddrFrom4(extract(&b)); e.prefix != ownNAT64 || !reserved(v4) {
				list = append(list, v4)
			}
		}
	}
	// ISATAP (RFC 5214, 6.1)
	if id := [4]byte(b[8:12]); id == [4]byte{0, 0, 0x5e, 0xfe} || id == [4]byte{2, 0, 0x5e, 0xfe} {
		list = append(list, netip.AddrFrom4([4]byte(b[12:])))
	}
	return list
}
