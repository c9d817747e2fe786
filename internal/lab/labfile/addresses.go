package labfile

import (
	"net/netip"

	"vnic.dev/vnic/internal/lab"
)

// Addrs returns the default addresses of a NIC: rail is its number in its guest, and guest the guest's number in
// the file. NICs with the same number share a subnet; NICs of one guest do not, because interfaces in one subnet
// would answer each other's ARP requests.
func Addrs(rail, guest int) (v4, v6 netip.Prefix) {
	b4, b6 := lab.Addr4(guest).Addr().As4(), lab.Addr6(guest).Addr().As16()
	b4[2] += byte(rail)
	b6[7] = byte(rail)
	return netip.PrefixFrom(netip.AddrFrom4(b4), 24), netip.PrefixFrom(netip.AddrFrom16(b6), 64)
}

// Given returns the addresses of a NIC that differ from its default (Addrs), and zero for an address that does not.
func (l *Lab) Given(guest, nic int) (v4, v6 netip.Prefix) {
	n := &l.Guests[guest].NICs[nic]
	own4, own6 := Addrs(nic, guest)
	if n.Addr4 != own4 {
		v4 = n.Addr4
	}
	if n.Addr6 != own6 {
		v6 = n.Addr6
	}
	return v4, v6
}

// addresses checks the addresses of NIC i: an address that is not the default must be usable for a host, and
// outside the subnets of Addrs; no subnet may overlap the subnet of an earlier NIC of the guest.
func (b *builder) addresses(where path, i int, n *lab.NIC, before []lab.NIC) error {
	own4, own6 := Addrs(i, len(b.out.Guests))
	for _, a := range []struct {
		key         string
		has, byRail netip.Prefix
		get         func(*lab.NIC) netip.Prefix
	}{
		{"ipv4", n.Addr4, own4, func(n *lab.NIC) netip.Prefix { return n.Addr4 }},
		{"ipv6", n.Addr6, own6, func(n *lab.NIC) netip.Prefix { return n.Addr6 }},
	} {
		if a.has != a.byRail {
			if bad := noHost(a.has, a.byRail); bad != "" {
				return b.wrong(where.to("nics", i, a.key), "%v: %s", a.has, bad)
			}
		}
		for j := range before {
			if other := a.get(&before[j]); other.Overlaps(a.has) {
				nic := i
				if a.has == a.byRail { // so NIC j's is not its default
					nic = j
				}
				return b.wrong(where.to("nics", nic, a.key), "%s has %v, and %s %v: each NIC of a guest has a subnet of its own",
					before[j].Name, other, n.Name, a.has)
			}
		}
	}
	return nil
}

// noHost returns the reason why a NIC cannot have the given address p; "": it can.
func noHost(p, owns netip.Prefix) string {
	first, last := bounds(p)
	switch {
	case reserved(p.Addr()):
		return "vnic gives the addresses of this subnet itself, " + owns.String() + " to this NIC: take another subnet, or " +
			"leave it out"
	case p.Bits() == 0:
		return "a prefix of length 0 is all there is: a subnet has a longer one, as 24 or 64"
	case p.Addr() == first:
		return "this is the subnet's own address, and no host's"
	case p.Addr() == last && p.Addr().Is4():
		return "this is the subnet's broadcast address, and no host's"
	}
	return ""
}

// bounds returns a subnet's first and last address; zero if the subnet has only one or two addresses, which hosts
// may have.
func bounds(p netip.Prefix) (first, last netip.Addr) {
	if p.Bits() >= p.Addr().BitLen()-1 {
		return first, last
	}
	b := p.Masked().Addr().AsSlice()
	for i := p.Bits(); i < 8*len(b); i++ {
		b[i/8] |= 0x80 >> (i % 8)
	}
	last, _ = netip.AddrFromSlice(b)
	return p.Masked().Addr(), last
}

// reserved reports whether an address is in a subnet of Addrs.
func reserved(a netip.Addr) bool {
	for rail := range maxNICs {
		if v4, v6 := Addrs(rail, 0); v4.Masked().Contains(a) || v6.Masked().Contains(a) {
			return true
		}
	}
	return false
}
