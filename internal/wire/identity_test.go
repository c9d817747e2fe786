package wire

import (
	"encoding/binary"
	"net/netip"
	"sync"
	"testing"
	"time"

	"vnic.dev/vnic/internal/testkit"
	"vnic.dev/vnic/splitter"
)

type refusals struct {
	mu  sync.Mutex
	got []Refusal
}

func (r *refusals) note(f Refusal) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.got = append(r.got, f)
}

func (r *refusals) take() []Refusal {
	r.mu.Lock()
	defer r.mu.Unlock()
	got := r.got
	r.got = nil
	return got
}

// town is a switch with a clock that tests set (now), a router, and two hosts, a and b, whose sources it checks.
type town struct {
	s       *Switch
	router  *host // number 9
	a, b    *host
	refused refusals
	now     time.Time
}

func newTown(t testing.TB, change func(n byte, o *Identity)) *town {
	v := &town{s: newSwitch(t), now: time.Unix(1000, 0)}
	v.s.names.clock = func() time.Time { return v.now }
	add := func(n byte, o Identity) *host {
		o.MAC, o.Refused = MAC{2, 0, 0, 0, 0, n}, v.refused.note
		if change != nil {
			change(n, &o)
		}
		return newHost(t, v.s, n, LinkOptions{Identity: &o})
	}
	v.router = add(9, Identity{Router: true})
	v.a, v.b = add(1, Identity{}), add(2, Identity{})
	v.router.link.Reserve(v.router.mac, netip.MustParseAddr("10.0.0.9"), netip.MustParseAddr("fd00::9"),
		netip.MustParseAddr("fe80::9"))
	for _, h := range []*host{v.router, v.a, v.b} {
		v.s.table.learn(h.mac.key(), h.link.id)
	}
	return v
}

func ip4(n byte) []byte { return []byte{10, 0, 0, n} }
func ip6(n byte) []byte { return []byte{0: 0xfd, 15: n} }
func ll6(n byte) []byte { return []byte{0: 0xfe, 1: 0x80, 15: n} }

var none6 = make([]byte, 16)

func frame(src MAC, tags int, etherType uint16, body []byte) []byte {
	b := append(append([]byte{}, broadcast[:]...), src[:]...)
	for i := range tags {
		b = binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint16(b, splitter.EtherTypeVLAN), uint16(i*5))
	}
	return append(binary.BigEndian.AppendUint16(b, etherType), body...)
}

func arpBody(op byte, mac MAC, from, to []byte) []byte {
	b := append([]byte{0, 1, 8, 0, 6, 4, 0, op}, mac[:]...)
	b = append(append(b, from...), make([]byte, 6)...)
	return append(b, to...)
}

func ipv4Body(from, to []byte, proto byte, body ...byte) []byte {
	b := make([]byte, 20)
	b[0], b[8], b[9] = 0x45, 64, proto
	binary.BigEndian.PutUint16(b[2:], uint16(20+len(body)))
	copy(b[12:], from)
	copy(b[16:], to)
	return append(b, body...)
}

func ipv6Body(from, to []byte, proto byte, body ...byte) []byte {
	b := make([]byte, 8, 40)
	b[0], b[6], b[7] = 0x60, proto, 255
	binary.BigEndian.PutUint16(b[4:], uint16(len(body)))
	b = append(append(b, from...), to...)
	return append(b, body...)
}

// nd makes a neighbor discovery message of type kind, with a target and, if option is not 0, an option of that type
// that names mac.
func nd(kind byte, target []byte, option byte, mac MAC) []byte {
	b := append([]byte{kind, 0, 0, 0, 0, 0, 0, 0}, target...)
	if option != 0 {
		b = append(append(b, option, 1), mac[:]...)
	}
	return b
}

// icmp makes an IPv6 packet with an ICMPv6 message from host n's address ip6(n); n|0x80: from ll6(n).
func icmp(n byte, body ...byte) []byte {
	from := ip6(n)
	if n&0x80 != 0 {
		from = ll6(n &^ 0x80)
	}
	return ipv6Body(from, allNodes, protoICMPv6, body...)
}

func padded(body ...byte) []byte { return append([]byte{protoICMPv6, 0, 1, 4, 0, 0, 0, 0}, body...) }

// whole makes an IPv6 packet that has a fragment header although it is not fragmented. next is the protocol of body,
// which follows the header.
func whole(next byte, body ...byte) []byte {
	return ipv6Body(ip6(1), allNodes, 44, append([]byte{next, 0, 0, 0, 0, 0, 0, 1}, body...)...)
}

// router makes a router solicitation (133) or advertisement (134): kind, zeros up to fixed bytes, and options.
func router(kind byte, fixed int, options ...byte) []byte {
	return append(append([]byte{kind}, make([]byte, fixed-1)...), options...)
}

func redirect(target []byte) []byte { return append(nd(137, target, 0, MAC{}), make([]byte, 16)...) }

var allNodes = []byte{0: 0xff, 1: 2, 15: 1}

// try sends a frame, with hdr bytes in the Header as far as rawFrame allows, and the rest in memory. It returns why the
// frame was dropped; DropNone: it was taken.
func (h *host) try(frame []byte, hdr int) DropReason {
	h.t.Helper()
	p := h.sent(h.rawFrame(frame, hdr, 0, 5))
	if p.Verdict.Kind == Taken {
		return DropNone
	}
	if p.Verdict.Kind != Dropped {
		h.t.Fatalf("%+v", p.Verdict)
	}
	return p.Verdict.Reason
}

// say sends a frame three times, with different lengths of the Header, and compares each result of try with want.
func (h *host) say(what string, frame []byte, want DropReason) {
	h.t.Helper()
	for _, hdr := range []int{splitter.EthLen, 60, 512} {
		if got := h.try(frame, hdr); got != want {
			h.t.Errorf("%s, %d bytes in the header: %v, want %v", what, hdr, got, want)
		}
	}
}

// claims returns frames from mac, by name, and each claims an IP address of host n, with tags VLAN tags.
func claims(mac MAC, n byte, tags int) map[string][]byte {
	return map[string][]byte{
		"ARP request":      frame(mac, tags, 0x0806, arpBody(1, mac, ip4(n), ip4(77))),
		"ARP reply":        frame(mac, tags, 0x0806, arpBody(2, mac, ip4(n), ip4(1))),
		"gratuitous ARP":   frame(mac, tags, 0x0806, arpBody(1, mac, ip4(n), ip4(n))),
		"IPv4":             frame(mac, tags, 0x0800, ipv4Body(ip4(n), ip4(77), 1, 8, 0, 0, 0)),
		"IPv4, TCP":        frame(mac, tags, 0x0800, ipv4Body(ip4(n), ip4(77), 6, tcp()...)),
		"IPv4, UDP":        frame(mac, tags, 0x0800, ipv4Body(ip4(n), ip4(77), 17, 0, 1, 0, 2, 0, 8, 0, 0)),
		"IPv4, bad UDP":    frame(mac, tags, 0x0800, ipv4Body(ip4(n), ip4(77), 17, 0, 1, 0, 2, 0, 7, 0, 0)),
		"IPv4 fragment":    frame(mac, tags, 0x0800, fragment4(ipv4Body(ip4(n), ip4(77), 17, make([]byte, 16)...))),
		"IPv6, echo":       frame(mac, tags, 0x86dd, icmp(n, 128, 0, 0, 0, 0, 0, 0, 0)),
		"IPv6, TCP":        frame(mac, tags, 0x86dd, ipv6Body(ip6(n), allNodes, 6, tcp()...)),
		"IPv6, bad TCP":    frame(mac, tags, 0x86dd, ipv6Body(ip6(n), allNodes, 6, make([]byte, 20)...)),
		"IPv6 fragment":    frame(mac, tags, 0x86dd, ipv6Body(ip6(n), allNodes, 44, 17, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 0)),
		"solicitation":     frame(mac, tags, 0x86dd, icmp(n, nd(135, ip6(77), 1, mac)...)),
		"router solicit":   frame(mac, tags, 0x86dd, icmp(n, 133, 0, 0, 0, 0, 0, 0, 0)),
		"advertisement":    frame(mac, tags, 0x86dd, icmp(n, nd(136, ip6(n), 2, mac)...)),
		"IPv6, link-local": frame(mac, tags, 0x86dd, icmp(n|0x80, 128, 0, 0, 0, 0, 0, 0, 0)),
		"behind an option": frame(mac, tags, 0x86dd,
			ipv6Body(ip6(n), allNodes, 60, padded(nd(136, ip6(n), 2, mac)...)...)),
		"a router's advert": frame(mac, tags, 0x86dd, icmp(n|0x80, router(134, 16)...)),
	}
}

func tcp() []byte {
	b := make([]byte, 20)
	b[12] = 5 << 4
	return b
}

func fragment4(ip []byte) []byte {
	ip[6] = 0x20
	return ip
}

// Each frame of claims passes from the port that has the address, and not from another port.
//
// Invariant: wire: No frame of a port whose sources are checked claims an address that is bound to
// another port.
func TestAPortSaysOnlyWhatItHas(t *testing.T) {
	v := newTown(t, nil)
	a, b := v.a, v.b
	for _, tags := range []int{0, 1, 2} {
		for name, f := range claims(b.mac, 2, tags) {
			b.say(name, f, DropNone)
		}
	}
	a.take()
	v.router.take()
	for _, tags := range []int{0, 1, 2} {
		for _, victim := range []byte{2, 9} {
			for name, f := range claims(a.mac, victim, tags) {
				a.say(name, f, DropAddress)
			}
			for name, f := range claims(MAC{2, 0, 0, 0, 0, victim}, victim, tags) {
				a.say(name+" with its MAC", f, DropMAC)
			}
		}
	}
	testkit.Equal(t, "frames that b and the router saw", len(b.take())+len(v.router.take()), 0)
	if n := a.link.Counters(); n.Drops[DropAddress] == 0 || n.Drops[DropMAC] == 0 {
		t.Errorf("%+v", n)
	}
	for _, h := range []*host{b, v.router} {
		testkit.Equal(t, "where the switch finds it", v.s.Find(h.mac), h.link)
	}
	for name, f := range claims(a.mac, 1, 0) {
		a.say(name+", its own", f, DropNone)
	}
}

func TestNeighborsNameOnlyTheirMAC(t *testing.T) {
	v := newTown(t, nil)
	a := v.a
	v4 := func(ip []byte) []byte { return frame(a.mac, 0, splitter.EtherTypeIPv4, ip) }
	v6 := func(ip []byte) []byte { return frame(a.mac, 0, splitter.EtherTypeIPv6, ip) }
	arp := func(b []byte) []byte { return frame(a.mac, 0, splitter.EtherTypeARP, b) }
	all4 := []byte{255, 255, 255, 255}
	long := make([]byte, 8*63)
	long[0], long[1] = 58, 62
	long = append(long, nd(136, ip6(9), 2, a.mac)...)
	for name, c := range map[string]struct {
		frame []byte
		want  DropReason
	}{
		"ARP, b's MAC":           {arp(arpBody(1, v.b.mac, ip4(1), ip4(2))), DropMAC},
		"ARP, an invented MAC":   {frame(a.mac, 1, 0x0806, arpBody(2, MAC{2, 7}, ip4(1), ip4(2))), DropMAC},
		"solicit, router's MAC":  {v6(icmp(1, nd(135, ip6(2), 1, v.router.mac)...)), DropMAC},
		"advert, b's MAC":        {v6(icmp(1, nd(136, ip6(1), 2, v.b.mac)...)), DropMAC},
		"router solicit":         {v6(icmp(1, router(133, 8, append([]byte{1, 1}, v.b.mac[:]...)...)...)), DropMAC},
		"advert, b's address":    {v6(icmp(1, nd(136, ip6(9), 2, a.mac)...)), DropAddress},
		"redirect":               {v6(icmp(1, redirect(ip6(9))...)), DropAddress},
		"ARP, short":             {arp(arpBody(1, a.mac, ip4(1), ip4(2))[:27]), DropBadFrame},
		"ARP, of another kind":   {arp(append([]byte{0, 1, 8, 0, 6, 16}, make([]byte, 40)...)), DropBadFrame},
		"three tags":             {frame(a.mac, 3, 0x0806, arpBody(2, a.mac, ip4(9), ip4(2))), DropBadFrame},
		"an advert in fragments": {v6(whole(58, nd(136, ip6(1), 2, a.mac)...)), DropBadFrame},
		"one behind an option":   {v6(whole(60, padded(nd(136, ip6(1), 2, a.mac)...)...)), DropBadFrame},
		"long options":           {v6(ipv6Body(ip6(1), allNodes, 60, long...)), DropBadFrame},
		"an advert cut short":    {v6(icmp(1, nd(136, ip6(1), 0, a.mac)[:20]...)), DropBadFrame},
		"a group as source":      {v6(ipv6Body(allNodes, allNodes, 58, 128, 0, 0, 0)), DropAddress},
		"IPv4 broadcast":         {v4(ipv4Body(all4, ip4(2), 1)), DropAddress},
		"IPv4 loopback":          {v4(ipv4Body([]byte{127, 0, 0, 1}, ip4(2), 1)), DropAddress},
		"a MAC of zeros":         {frame(MAC{}, 0, 0x88cc, make([]byte, 10)), DropMAC},

		"DHCP":                  {v4(ipv4Body(make([]byte, 4), all4, 17, 0, 68, 0, 67, 0, 8, 0, 0)), DropNone},
		"a report from nowhere": {v6(ipv6Body(none6, allNodes, 58, 143, 0, 0, 0, 0, 0, 0, 0)), DropNone},
		"not IP":                {frame(a.mac, 0, 0x88cc, make([]byte, 10)), DropNone},
		"MPLS":                  {frame(a.mac, 0, 0x8847, ipv4Body(ip4(2), ip4(1), 1)), DropNone},
		"an ordinary fragment":  {v6(ipv6Body(ip6(1), allNodes, 44, 58, 0, 0, 1, 0, 0, 0, 1, 128, 0, 0, 0)), DropNone},
		"a later fragment":      {v6(ipv6Body(ip6(1), allNodes, 44, 58, 0, 0, 8, 0, 0, 0, 1, 136, 0, 0, 0)), DropNone},
		"a redirect to itself":  {v6(icmp(1, redirect(ip6(1))...)), DropNone},
	} {
		t.Run(name, func(t *testing.T) {
			a.t = t
			a.say(name, c.frame, c.want)
		})
	}
}

// The sender clears its memory between the switch's check and the copy by the receiver, b, which still gets what was
// checked.
func TestWhatWasJudgedOfNeighborsArrives(t *testing.T) {
	v := newTown(t, nil)
	for name, f := range claims(v.a.mac, 1, 1) {
		p := v.a.rawFrame(f, splitter.EthLen, 0, 3)
		n := len(f)
		if p.Meta.Headers.Class == splitter.OtherIP && p.Meta.Headers.Proto != protoICMPv6 {
			continue // its body is not checked
		}
		v.b.slow = func() { clear(v.a.ram[:600]) }
		v.a.send(p)
		v.b.slow = nil
		taken(t, p)
		got := v.b.take()
		v.router.take()
		if len(got) != 1 || len(got[0].frame) != n {
			t.Fatalf("%s: %d frames", name, len(got))
		}
		if c := p.Meta.Headers.Class; c == splitter.TCP || c == splitter.UDP || c == splitter.Malformed ||
			c == splitter.Fragment {
			continue // what lies after the headers is not checked
		}
		testkit.Equal(t, name, string(got[0].frame), string(f))
	}
}

// A probe for duplicates passes, unless the latest use of the address was another port's probe, less than probeIdle
// ago.
func TestDuplicatesAreFound(t *testing.T) {
	for name, probe := range map[string]func(h *host) []byte{
		"DAD": func(h *host) []byte {
			return frame(h.mac, 0, 0x86dd, ipv6Body(none6, allNodes, 58, nd(135, ip6(70), 0, h.mac)...))
		},
		"ARP": func(h *host) []byte { return frame(h.mac, 0, 0x0806, arpBody(1, h.mac, make([]byte, 4), ip4(70))) },
	} {
		t.Run(name, func(t *testing.T) {
			v := newTown(t, nil)
			use := func(h *host) []byte {
				if name == "DAD" {
					return frame(h.mac, 0, 0x86dd, icmp(70, 128, 0, 0, 0))
				}
				return frame(h.mac, 0, 0x0806, arpBody(1, h.mac, ip4(70), ip4(70)))
			}
			v.a.say("a's probe", probe(v.a), DropNone)
			v.b.say("b's at the same time", probe(v.b), DropAddress)
			v.b.say("b's use", use(v.b), DropAddress)
			v.a.say("a's use", use(v.a), DropNone)
			v.b.say("b's probe for what a uses", probe(v.b), DropNone)
			v.b.say("b's use", use(v.b), DropAddress)
			v.a.say("a's, after b's probe", use(v.a), DropNone)
			v.a.say("a's probe, booted again", probe(v.a), DropNone)
			v.b.say("b's then", probe(v.b), DropAddress)
			v.a.link.Forget()
			v.b.say("b's probe", probe(v.b), DropNone)
			v.now = v.now.Add(probeIdle)
			v.a.say("a's probe for what b has not used", probe(v.a), DropNone)
			v.a.say("a's use", use(v.a), DropNone)
			v.b.say("b's use", use(v.b), DropAddress)
		})
	}
}

func ping(h *host, n int) []byte {
	return frame(h.mac, 0, 0x0800, ipv4Body([]byte{172, 16, byte(n >> 8), byte(n)}, ip4(2), 1))
}

// An address moves to another port when its port has not used it for BindingIdle since another port wanted it, or at
// Forget or Detach.
func TestAddressesMove(t *testing.T) {
	v := newTown(t, nil)
	a, b := v.a, v.b
	a.say("first use", ping(a, 1), DropNone)
	b.say("another's", ping(b, 1), DropAddress)
	for range 100 { // a's own frames are the only evidence that a is there
		v.now = v.now.Add(BindingIdle / 2)
		b.say("while it is used", ping(b, 1), DropAddress)
		a.say("its use", ping(a, 1), DropNone)
	}
	v.now = v.now.Add(24 * time.Hour)
	b.say("idle, and not wanted yet", ping(b, 1), DropAddress)
	v.now = v.now.Add(BindingIdle - 1)
	b.say("wanted", ping(b, 1), DropAddress)
	v.now = v.now.Add(1)
	b.say("idle", ping(b, 1), DropNone)
	a.say("it was its", ping(a, 1), DropAddress)
	b.link.Forget()
	a.say("forgotten", ping(a, 1), DropNone)
	testkit.OK(t, v.s.Detach(a.link))
	b.say("detached", ping(b, 1), DropNone)
	testkit.Equal(t, "addresses, and MACs of two", len(v.s.names.byAddr), 3+1+2)
}

func TestInventedAddressesAreBounded(t *testing.T) {
	v := newTown(t, func(n byte, o *Identity) { o.Any = n == 1 })
	a, b := v.a, v.b
	b.say("b's first", ping(b, 60001), DropNone)
	ok := 0
	for n := range 10_000 {
		if a.try(ping(a, n), 512) == DropNone {
			ok++
		}
	}
	testkit.Equal(t, "addresses that it got", ok, MaxBindings)
	ok = 0
	for n := range 10_000 {
		if a.try(frame(MAC{2, 5, 0, 0, byte(n >> 8), byte(n)}, 0, 0x88cc, nil), 512) == DropNone {
			ok++
		}
	}
	testkit.Equal(t, "MACs that it got", ok, MaxBindings)
	testkit.Equal(t, "what the registry holds", len(v.s.names.byAddr), 3+3+2*MaxBindings+1)
	b.say("b's", ping(b, 60001), DropNone)
	b.say("b's second", ping(b, 60002), DropNone)
	list := v.refused.take()
	if len(list) != 2 || !list[0].Full || list[0].Link != a.link || !list[1].Full || list[1].Reason != DropMAC {
		t.Errorf("told: %+v", list)
	}
	v.now = v.now.Add(wantedAgain)
	a.say("one more", ping(a, 20_000), DropAddress)
	testkit.Equal(t, "what is told at once", len(v.refused.take()), 0)
	v.now = v.now.Add(BindingIdle - 1)
	a.say("one more, when others were not used for nearly a minute", ping(a, 20_000), DropAddress)
	list = v.refused.take()
	if len(list) != 1 || list[0].Addr != netip.MustParseAddr("172.16.78.32") || list[0].More != 10_000-MaxBindings-1+3 {
		t.Errorf("told: %+v", list)
	}
	a.say("in use", ping(a, 5), DropNone)
	v.now = v.now.Add(1)
	a.say("one more, when others are idle", ping(a, 20_000), DropNone)
	a.say("that which is in use", ping(a, 5), DropNone)
}

func TestMACs(t *testing.T) {
	x, y := MAC{2, 8, 8, 8, 8, 1}, MAC{2, 8, 8, 8, 8, 2}
	from := func(m MAC) []byte { return frame(m, 0, 0x88cc, nil) }
	v := newTown(t, nil)
	v.a.say("its own", from(v.a.mac), DropNone)
	v.a.say("another", from(x), DropMAC)

	v = newTown(t, func(n byte, o *Identity) { o.Also = []MAC{x, {2, 0, 0, 0, 0, 2}, {2, 0, 0, 0, 0, 9}} })
	v.a.say("one of the list", from(x), DropNone)
	v.b.say("which another has", from(x), DropMAC)
	v.a.say("not of the list", from(y), DropMAC)
	v.a.say("b's own, in the list", from(v.b.mac), DropMAC)
	v.a.say("the router's, in the list", from(v.router.mac), DropMAC)

	v = newTown(t, func(n byte, o *Identity) { o.Any = true })
	v.a.say("any", from(x), DropNone)
	v.b.say("which another has", from(x), DropMAC)
	v.b.say("any", from(y), DropNone)
	v.a.say("b's own", from(v.b.mac), DropMAC)
	v.a.say("the router's", from(v.router.mac), DropMAC)
	v.now = v.now.Add(wantedAgain)
	v.b.say("wanted", from(x), DropMAC)
	v.now = v.now.Add(BindingIdle)
	v.b.say("a machine that has moved", from(x), DropNone)
	v.a.say("from here", from(x), DropMAC)

	v = newTown(t, func(n byte, o *Identity) { o.Learn = n != 9 })
	v.a.say("the router's first", from(v.router.mac), DropMAC)
	v.a.say("b's first", from(v.b.mac), DropMAC)
	v.a.say("the first", from(x), DropNone)
	v.a.say("the second", from(y), DropMAC)
	v.a.say("that which it was to have", from(v.a.mac), DropMAC)
	v.b.say("another's", from(x), DropMAC)
	v.b.say("its own", from(v.b.mac), DropNone)
	v.a.link.Forget()
	v.b.say("b has one", from(x), DropMAC)
	v.a.say("the first of the next guest", from(y), DropNone)
	v.a.say("the one before", from(x), DropMAC)

	_, err := v.s.Attach(&sinkPort{}, LinkOptions{Identity: &Identity{MAC: v.b.mac}})
	testkit.ErrorIs(t, err, ErrIdentity)
	_, err = v.s.Attach(&sinkPort{}, LinkOptions{Identity: &Identity{MAC: broadcast}})
	testkit.ErrorIs(t, err, ErrIdentity)
	testkit.OK(t, v.s.Detach(v.b.link))
	_, err = v.s.Attach(&sinkPort{}, LinkOptions{Identity: &Identity{MAC: v.b.mac}})
	testkit.OK(t, err)
}

type sinkPort struct{}

func (sinkPort) Name() string               { return "sink" }
func (sinkPort) Limits() Limits             { return Limits{} }
func (sinkPort) Deliver(*Worker, []*Packet) {}

func TestLeases(t *testing.T) {
	v := newTown(t, nil)
	a, b := v.a, v.b
	x := netip.AddrFrom4([4]byte{172, 16, 0, 1})
	until := v.now.Add(time.Hour)
	b.say("b's", ping(b, 1), DropNone)
	testkit.Equal(t, "a may", v.s.MayLease(a.mac, x), false)
	testkit.Equal(t, "a's lease", v.s.Lease(a.mac, x, until), false)
	testkit.Equal(t, "b's lease", v.s.Lease(b.mac, x, until), true)
	v.now = v.now.Add(time.Hour - 1)
	a.say("a's use", ping(a, 1), DropAddress)
	v.s.EndLease(a.mac, x)
	a.say("a's use, after it has ended b's", ping(a, 1), DropAddress)
	v.s.EndLease(b.mac, x)
	testkit.Equal(t, "a may", v.s.MayLease(a.mac, x), true)
	a.say("a's use", ping(a, 1), DropNone)
	testkit.Equal(t, "a's lease", v.s.Lease(a.mac, x, v.now.Add(time.Minute)), true)
	testkit.Equal(t, "a holds it", v.s.Holds(a.mac, x), true)
	testkit.Equal(t, "b does", v.s.Holds(b.mac, x), false)
	v.now = v.now.Add(time.Minute)
	testkit.Equal(t, "b may, as the lease has run out", v.s.MayLease(b.mac, x), true)
	testkit.Equal(t, "b's lease", v.s.Lease(b.mac, x, v.now.Add(time.Minute)), true)
	a.say("a's use", ping(a, 1), DropAddress)
	testkit.Equal(t, "of nobody", v.s.Lease(MAC{2, 1, 1}, x, until), true)

	b.say("b's", ping(b, 2), DropNone)
	v.router.link.Reserve(a.mac, netip.AddrFrom4([4]byte{172, 16, 0, 2}))
	b.say("reserved for a", ping(b, 2), DropAddress)
	a.say("its own", ping(a, 2), DropNone)
	a.link.Forget()
	b.say("though a is away", ping(b, 2), DropAddress)
	testkit.OK(t, v.s.Detach(v.router.link))
	b.say("by nobody", ping(b, 2), DropNone)
}

// consistent checks that identity.allowed and identity.movable of each port agree with bindings.byAddr.
func (v *town) consistent(t *testing.T) {
	t.Helper()
	r := &v.s.names
	r.mu.Lock()
	defer r.mu.Unlock()
	listed := 0
	for _, h := range []*host{v.router, v.a, v.b} {
		d := h.link.who
		held := d.allowed.Load()
		for k, list := range held.addrs {
			for _, b := range list {
				if c := r.byAddr[source{b, kind(k)}]; c == nil || c.by != d || c.probed {
					t.Errorf("%s sends from %v: %+v", h.Name(), b, c)
				}
			}
		}
		for _, m := range held.macs {
			if c := r.byAddr[m.source()]; c == nil || c.by != d {
				t.Errorf("%s sends from %x: %+v", h.Name(), m, c)
			}
		}
		for _, list := range d.movable {
			for _, c := range list {
				if listed++; r.byAddr[c.src] != c || c.by != d || c.fixed() {
					t.Errorf("%s: %+v", h.Name(), c)
				}
			}
			if len(list) > MaxBindings {
				t.Errorf("%s: %d claims", h.Name(), len(list))
			}
		}
	}
	for _, c := range r.byAddr {
		if c.by != nil && !c.fixed() {
			listed--
		}
	}
	testkit.Equal(t, "claims that no port lists", listed, 0)
}

func TestClaimsFromManySides(t *testing.T) {
	v := newTown(t, func(n byte, o *Identity) { o.Any = true })
	var wg sync.WaitGroup
	for i, h := range []*host{v.a, v.a, v.b, v.b} {
		var ps []*Packet
		for n := range 80 {
			src := h.mac
			if n%8 == 7 {
				src = MAC{2, 6, 0, 0, 0, byte(n)}
			}
			b := frame(src, n%2, splitter.EtherTypeIPv4, ipv4Body([]byte{172, 16, byte(i % 3), byte(n)}, ip4(2), 1))
			ps = append(ps, h.rawFrame(b, 512, 0))
		}
		w := NewWorker()
		wg.Go(func() {
			tok := h.space.Enter()
			defer h.space.Leave(tok)
			for range 50 {
				for j := range ps {
					ps[j].Prepare()
				}
				h.link.Deliver(w, ps)
			}
		})
	}
	wg.Go(func() {
		for n := range 2000 {
			h := []*host{v.a, v.b}[n%2]
			x := netip.AddrFrom4([4]byte{172, 16, byte(n % 3), byte(n % 80)})
			if v.s.Lease(h.mac, x, v.now.Add(time.Hour)) && n%5 != 0 {
				v.s.EndLease(h.mac, x)
			}
			v.s.MayLease(v.b.mac, x)
			v.s.Holds(v.a.mac, x)
		}
	})
	wg.Wait()
	v.consistent(t)
	v.a.link.Forget()
	v.consistent(t)
}

// Frames that need no check of the bindings pass in one batch.
func TestWhatPassesGoesTogether(t *testing.T) {
	v := newTown(t, nil)
	udp := []byte{0, 1, 0, 2, 0, 8, 0, 0}
	for name, body := range map[string]struct {
		etherType uint16
		b         []byte
	}{
		"10.0.0.1": {0x0800, ipv4Body(ip4(1), ip4(2), 17, udp...)},
		"0.0.0.0":  {0x0800, ipv4Body(make([]byte, 4), ip4(2), 17, udp...)},
		"fd00::1":  {0x86dd, ipv6Body(ip6(1), ip6(2), 17, udp...)},
		"::":       {0x86dd, ipv6Body(none6, ip6(2), 17, udp...)},
	} {
		send := func(n int) []int {
			var batch []*Packet
			for range n {
				b := frame(v.a.mac, 0, body.etherType, body.b)
				copy(b, v.b.mac[:])
				batch = append(batch, v.a.rawFrame(b, len(b), 0, 0))
			}
			v.a.send(batch...)
			for _, p := range batch {
				taken(t, p)
			}
			v.b.mu.Lock()
			sizes := v.b.sizes
			v.b.mu.Unlock()
			v.b.take()
			return sizes
		}
		send(1) // binds the address unless it is unspecified
		if sizes := send(8); len(sizes) != 1 {
			t.Errorf("from %s: batches of %v", name, sizes)
		}
	}
}
