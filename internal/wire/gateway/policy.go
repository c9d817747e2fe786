package gateway

import (
	"fmt"
	"net/netip"
	"sync"
	"time"
)

// Policy defines which addresses guests reach through NAT. The gateway checks the address and port that it is going to
// dial for each TCP connection, and for each datagram whose flow has no socket to that port yet.
//
// The layers of an address are itself and the IPv4 addresses that may be embedded in it (embedded.go). An address
// passes if each layer passes these steps:
//
//  1. Reserved addresses are refused: multicast, 0.0.0.0/8, 240.0.0.0/4 with 255.255.255.255, and ::.
//  2. Of the prefixes of Deny and Allow and the built-in ones that contain the address, the longest
//     decides; of equally long ones Deny comes before Allow, and Allow before built-in ones.
//     If none contains it, it passes this step.
//  3. An address of the host itself, loopback or an interface's, passes only with a port in
//     HostPorts, also if Allow has the address. An echo has port 0, which only AllPorts has.
//
// A resolver of the host passes if it is reserved, or if Deny does not decide in step 2 (checkResolver). If the host's
// addresses cannot be read, every address counts as the host's. An address that only a route makes local (ip route add
// local) is none of the host's for this check.
type Policy struct {
	HostPorts   Ports // ports of the host's own addresses that guests may reach (step 3)
	Deny, Allow []netip.Prefix
}

// Rule is the part of a Policy that refuses an address.
type Rule uint8

// The Rules; RuleNone: the address is not refused.
const (
	RuleNone      Rule = iota
	RuleReserved       // step 1: a reserved address
	RuleLinkLocal      // a built-in prefix: link-local addresses
	RuleMetadata       // a built-in prefix: clouds' metadata and other services
	RuleDeny           // Policy.Deny
	RuleHostPorts      // step 3, or Options.Own
	NumRules
)

var ruleNames = [NumRules]string{"none", "reserved", "link-local", "metadata", "deny", "host-ports"}

// String returns the rule's name.
func (r Rule) String() string {
	if r < NumRules {
		return ruleNames[r]
	}
	return "unknown"
}

// builtin are the prefixes that a Policy refuses: the reserved ones always, others unless Allow decides.
var builtin = []refuses{
	// this network (RFC 1122, 3.2.1.3); Linux takes 0.0.0.0 for its loopback
	{netip.MustParsePrefix("0.0.0.0/8"), RuleReserved},
	{netip.MustParsePrefix("224.0.0.0/4"), RuleReserved}, // multicast (RFC 5771)
	{netip.MustParsePrefix("240.0.0.0/4"), RuleReserved}, // reserved (RFC 1112, 4), and broadcast
	// unspecified (RFC 4291, 2.5.2); Linux takes it for its loopback
	{netip.MustParsePrefix("::/128"), RuleReserved},
	{netip.MustParsePrefix("ff00::/8"), RuleReserved}, // multicast (RFC 4291, 2.7)

	// link-local (RFC 3927); it includes most clouds' services, which have prefixes of their own below
	{netip.MustParsePrefix("169.254.0.0/16"), RuleLinkLocal},
	{netip.MustParsePrefix("fe80::/10"), RuleLinkLocal}, // link-local (RFC 4291, 2.5.6)

	// metadata of AWS, Azure, Google, Oracle, IBM, DigitalOcean, Hetzner, Linode, OpenStack
	{netip.MustParsePrefix("169.254.169.254/32"), RuleMetadata},
	{netip.MustParsePrefix("169.254.169.253/32"), RuleMetadata}, // AWS: DNS
	{netip.MustParsePrefix("169.254.169.123/32"), RuleMetadata}, // AWS: time
	{netip.MustParsePrefix("169.254.170.2/32"), RuleMetadata},   // AWS: credentials of ECS tasks
	{netip.MustParsePrefix("169.254.170.23/32"), RuleMetadata},  // AWS: credentials of EKS pods
	{netip.MustParsePrefix("169.254.0.23/32"), RuleMetadata},    // Tencent: metadata.tencentyun.com
	{netip.MustParsePrefix("169.254.42.42/32"), RuleMetadata},   // Scaleway: metadata
	// AWS: metadata ::254, DNS ::253, time ::123, EKS ::23
	{netip.MustParsePrefix("fd00:ec2::/32"), RuleMetadata},
	{netip.MustParsePrefix("fd20:ce::254/128"), RuleMetadata},       // Google: metadata
	{netip.MustParsePrefix("fd00:c1::a9fe:a9fe/128"), RuleMetadata}, // Oracle: metadata
	{netip.MustParsePrefix("fd00:a9fe:a9fe::1/128"), RuleMetadata},  // Linode: metadata
	{netip.MustParsePrefix("fd00:42::42/128"), RuleMetadata},        // Scaleway: metadata
	{netip.MustParsePrefix("fe80::a9fe:a9fe/128"), RuleMetadata},    // OpenStack: metadata
	{netip.MustParsePrefix("100.100.100.200/32"), RuleMetadata},     // Alibaba: metadata
	{netip.MustParsePrefix("168.63.129.16/32"), RuleMetadata},       // Azure: WireServer, DNS, DHCP
	{netip.MustParsePrefix("192.0.0.192/32"), RuleMetadata},         // Oracle: metadata of its classic hosts
}

// refuses is a prefix with the rule that refuses it; RuleNone: it is allowed.
type refuses struct {
	prefix netip.Prefix
	rule   Rule
}

func reserved(a netip.Addr) bool { return Reserved(netip.PrefixFrom(a, a.BitLen())) }

// Reserved reports whether the whole network p lies in a reserved prefix (step 1 of Policy).
func Reserved(p netip.Prefix) bool {
	for _, b := range builtin {
		if b.rule == RuleReserved && b.prefix.Bits() <= p.Bits() && b.prefix.Contains(p.Addr()) {
			return true
		}
	}
	return false
}

// permit is an address that the gateway may dial; zero: none. Outside of tests only Policy.check and
// Policy.checkResolver make others.
type permit struct{ to netip.AddrPort }

type refusal struct {
	to   netip.AddrPort
	rule Rule
	flag string // for messages: the flag that refuses the address or would allow it, if there is one
}

func (r *refusal) Error() string {
	return fmt.Sprintf("%v is refused: %v; %s", r.to, r.rule, r.flag)
}

// check returns a permit for an address, or why a guest may not reach it.
//
// Unlike Policy.check, it also refuses the program's own ports of the host (Options.Own), unless HostPorts names them.
func (g *Gateway) check(to netip.AddrPort) (permit, *refusal) {
	p, no := g.o.Policy.check(to, g.host)
	if no != nil || g.o.Own == nil || !g.o.Own(to.Port()) || g.o.Policy.HostPorts.names(to.Port()) {
		return p, no
	}
	for _, a := range layers(to.Addr()) {
		if g.host.has(a) {
			return permit{}, &refusal{to, RuleHostPorts, fmt.Sprintf("it is vnic's own: --host-ports %d allows it", to.Port())}
		}
	}
	return p, nil
}

func (p *Policy) check(to netip.AddrPort, host *hostAddrs) (permit, *refusal) {
	for _, a := range layers(to.Addr()) {
		rule, flag := p.addr(a, builtin)
		if rule == RuleNone && !p.HostPorts.Contains(to.Port()) && host.has(a) {
			rule, flag = RuleHostPorts, fmt.Sprintf("--host-ports %d allows it", to.Port())
		}
		if rule != RuleNone {
			return permit{}, &refusal{to, rule, flag}
		}
	}
	return permit{to}, nil
}

// checkResolver returns a permit for a resolver of the host, or the refusal if Deny decides in step 2. A resolver may
// be link-local or the host's own.
func (p *Policy) checkResolver(to netip.AddrPort) (permit, *refusal) {
	for _, a := range layers(to.Addr()) {
		if rule, flag := p.addr(a, nil); rule == RuleDeny {
			return permit{}, &refusal{to, rule, flag}
		}
	}
	return permit{to}, nil
}

// addr returns the rule that refuses an address in step 1 or 2, with these built-in prefixes, and refusal.flag; or
// RuleNone.
func (p *Policy) addr(a netip.Addr, builtin []refuses) (Rule, string) {
	if reserved(a) {
		return RuleReserved, "no flag allows it"
	}
	best := refuses{}
	look := func(prefix netip.Prefix, rule Rule) {
		if prefix.Contains(a) && (!best.prefix.IsValid() || prefix.Bits() > best.prefix.Bits()) {
			best = refuses{prefix, rule}
		}
	}
	for _, d := range p.Deny { // of equally long ones the first counts
		look(d, RuleDeny)
	}
	for _, d := range p.Allow {
		look(d, RuleNone)
	}
	for _, b := range builtin {
		look(b.prefix, b.rule)
	}
	switch best.rule {
	case RuleNone:
		return RuleNone, ""
	case RuleDeny:
		return RuleDeny, fmt.Sprintf("--deny %v says so", best.prefix)
	}
	return best.rule, fmt.Sprintf("--allow %v allows it", a)
}

type hostAddrs struct {
	read func() ([]netip.Addr, error)
	now  func() time.Time

	mu    sync.Mutex // guards the fields below
	until time.Time  // from then on hostAddrs.has reads the addresses again
	known bool
	addrs map[netip.Addr]bool
}

func newHostAddrs(read func() ([]netip.Addr, error)) *hostAddrs {
	return &hostAddrs{read: read, now: time.Now}
}

const hostAddrsAge = time.Second // how long hostAddrs.has uses the cached addresses

// has reports whether an address is a loopback, an unspecified or an interface's address of the host, as read at most
// hostAddrsAge ago. If that reading failed, it returns true.
func (h *hostAddrs) has(a netip.Addr) bool {
	if a.IsLoopback() || a.IsUnspecified() {
		return true
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if now := h.now(); !now.Before(h.until) {
		list, err := h.read()
		h.until, h.known, h.addrs = now.Add(hostAddrsAge), err == nil, map[netip.Addr]bool{}
		for _, addr := range list {
			h.addrs[addr.Unmap()] = true
		}
	}
	return !h.known || h.addrs[a]
}
