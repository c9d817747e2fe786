package gateway

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// Ports is a set of TCP and UDP ports. The zero value is empty.
type Ports struct{ ranges [][2]uint16 } // first and last port of each, included

// AllPorts is the set of all ports, 0 included.
var AllPorts = Ports{[][2]uint16{{0, 65535}}}

const portsForm = "all, none, or ports as 80,8000-8010"

// ParsePorts parses "all", "none", or ports from 1 on and ranges of them, separated by commas.
func ParsePorts(s string) (p Ports, err error) {
	switch s {
	case "all":
		return AllPorts, nil
	case "none":
		return p, nil
	}
	for w := range strings.SplitSeq(s, ",") {
		from, to, span := strings.Cut(w, "-")
		if !span {
			to = from
		}
		first, err1 := strconv.ParseUint(from, 10, 16)
		last, err2 := strconv.ParseUint(to, 10, 16)
		if err1 != nil || err2 != nil || first == 0 || last < first {
			return Ports{}, fmt.Errorf("%q: %s", w, portsForm)
		}
		p.ranges = append(p.ranges, [2]uint16{uint16(first), uint16(last)})
	}
	return p, nil
}

// Contains reports whether a port is in the set.
func (p Ports) Contains(port uint16) bool {
	for _, r := range p.ranges {
		if r[0] <= port && port <= r[1] {
			return true
		}
	}
	return false
}

// widest is how many ports a range may have for Ports.names to count each of its ports as named.
const widest = 100

func (p Ports) names(port uint16) bool {
	return slices.ContainsFunc(p.ranges, func(r [2]uint16) bool {
		return r[0] <= port && port <= r[1] && r[1]-r[0] < widest
	})
}

// String formats the set as ParsePorts accepts it.
func (p Ports) String() string {
	var words []string
	for _, r := range p.ranges {
		switch {
		case r == [2]uint16{0, 65535}:
			return "all"
		case r[0] == r[1]:
			words = append(words, fmt.Sprint(r[0]))
		default:
			words = append(words, fmt.Sprintf("%d-%d", r[0], r[1]))
		}
	}
	if words == nil {
		return "none"
	}
	return strings.Join(words, ",")
}

// ParsePrefix parses an entry of Policy.Allow or Policy.Deny: a network, or a single address. It refuses zones,
// IPv4-mapped addresses, and networks with bits set behind the prefix.
func ParsePrefix(s string) (netip.Prefix, error) {
	p, err := netip.ParsePrefix(s)
	if err != nil {
		var a netip.Addr
		if a, err = netip.ParseAddr(s); err == nil {
			if a.Zone() != "" {
				return p, errors.New("an address with a zone: leave that out")
			}
			p = netip.PrefixFrom(a, a.BitLen())
		}
	}
	switch {
	case err != nil:
		return p, errors.New("not an address or network, as 192.0.2.0/24 or 2001:db8::/32")
	case p.Addr().Is4In6():
		return p, errors.New("an IPv4 address in an IPv6 one: give the IPv4 address, which covers it")
	case p != p.Masked():
		return p, fmt.Errorf("bits behind /%d are set: say %v", p.Bits(), p.Masked())
	}
	return p, nil
}

func (o *Options) checkPolicy() error {
	denied := map[netip.Prefix]bool{}
	for _, p := range o.Policy.Deny {
		if !p.IsValid() || p != p.Masked() {
			return bad("deny %v: not a network", p)
		}
		denied[p] = true
	}
	for _, p := range o.Policy.Allow {
		switch {
		case !p.IsValid() || p != p.Masked():
			return bad("allow %v: not a network", p)
		case denied[p]:
			return bad("%v is both allowed and denied", p)
		}
	}
	return nil
}

// MarshalText writes the set as String does.
func (p Ports) MarshalText() ([]byte, error) { return []byte(p.String()), nil }

// UnmarshalText reads the set as ParsePorts does.
func (p *Ports) UnmarshalText(b []byte) (err error) {
	*p, err = ParsePorts(string(b))
	return err
}
