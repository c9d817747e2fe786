package gateway

import (
	"net/netip"
	"slices"
	"strings"

	"golang.org/x/net/dns/dnsmessage"
)

const (
	domain  = "vnic" // of the names; names.lookup also finds them without it
	nameTTL = 30     // seconds: TTL of the records in names.answer
)

// names has the names and addresses of the gateway and of the Hosts with a Name; immutable.
type names struct {
	addrs    map[string][2]netip.Addr // IPv4 and IPv6 address (zero: none) by name, in lower case without domain
	names    map[netip.Addr]string    // name by address, with domain and final dot
	networks [2]netip.Prefix          // a missing reverse name in them gets a name error
}

func newNames(o *Options) *names {
	n := &names{addrs: map[string][2]netip.Addr{}, names: map[netip.Addr]string{},
		networks: [2]netip.Prefix{o.Prefix4, o.Prefix6}}
	for _, h := range append([]Host{{Name: GatewayName, Addr4: o.Prefix4.Addr(), Addr6: o.Prefix6.Addr()}}, o.Hosts...) {
		if h.Name == "" {
			continue
		}
		name := strings.ToLower(h.Name)
		n.addrs[name] = [2]netip.Addr{h.Addr4, h.Addr6}
		n.names[h.Addr4], n.names[h.Addr6] = name+"."+domain+".", name+"."+domain+"."
	}
	return n
}

// lookup finds the addresses of a name, which may lack the domain. ours: the name is the domain or in it, so the
// gateway answers also if it does not find the name.
func (n *names) lookup(name string) (addrs [2]netip.Addr, found, ours bool) {
	name, ours = strings.CutSuffix(strings.ToLower(strings.TrimSuffix(name, ".")), "."+domain)
	addrs, found = n.addrs[name]
	return addrs, found, ours || name == domain
}

// answer returns the answer to a question: the records found, maybe none, or a name error if a name of the domain, or a
// reverse name in n.networks, is missing. nil: another name is missing, or the answer cannot be encoded.
func (n *names) answer(h *dnsmessage.Header, q *dnsmessage.Question) []byte {
	addrs, found, ours := n.lookup(q.Name.String())
	name := ""
	if a, ok := reversed(q.Name.String()); ok && (n.networks[0].Contains(a) || n.networks[1].Contains(a)) {
		name, found = n.names[a]
		ours = true
	}
	if !found && !ours {
		return nil
	}
	code := dnsmessage.RCodeSuccess
	if !found {
		code = dnsmessage.RCodeNameError
	}
	b := respond(h, code, true)
	if b.StartQuestions() != nil || b.Question(*q) != nil || b.StartAnswers() != nil {
		return nil
	}
	rh := dnsmessage.ResourceHeader{Name: q.Name, Class: dnsmessage.ClassINET, TTL: nameTTL}
	asked := func(t dnsmessage.Type) bool { return q.Type == t || q.Type == dnsmessage.TypeALL }
	var err error
	if a := addrs[0]; a.IsValid() && asked(dnsmessage.TypeA) {
		err = b.AResource(rh, dnsmessage.AResource{A: a.As4()})
	}
	if a := addrs[1]; err == nil && a.IsValid() && asked(dnsmessage.TypeAAAA) {
		err = b.AAAAResource(rh, dnsmessage.AAAAResource{AAAA: a.As16()})
	}
	if err == nil && name != "" && asked(dnsmessage.TypePTR) {
		var ptr dnsmessage.Name
		if ptr, err = dnsmessage.NewName(name); err == nil {
			err = b.PTRResource(rh, dnsmessage.PTRResource{PTR: ptr})
		}
	}
	if err != nil {
		return nil
	}
	return finish(b)
}

// reversed returns the address for which a name is the reverse name (RFC 1035, 3.5; RFC 3596, 2.5); false: for none.
func reversed(name string) (netip.Addr, bool) {
	name = strings.ToLower(strings.TrimSuffix(name, "."))
	if four, ok := strings.CutSuffix(name, ".in-addr.arpa"); ok {
		labels := strings.Split(four, ".")
		slices.Reverse(labels)
		a, err := netip.ParseAddr(strings.Join(labels, "."))
		return a, err == nil && a.Is4()
	}
	if six, ok := strings.CutSuffix(name, ".ip6.arpa"); ok && len(six) == 63 {
		var b strings.Builder
		for i := 62; i >= 0; i -= 2 {
			if b.WriteByte(six[i]); i%8 == 0 && i > 0 {
				b.WriteByte(':')
			}
		}
		a, err := netip.ParseAddr(b.String())
		return a, err == nil && a.Is6()
	}
	return netip.Addr{}, false
}

func respond(h *dnsmessage.Header, code dnsmessage.RCode, ours bool) *dnsmessage.Builder {
	b := dnsmessage.NewBuilder(nil, dnsmessage.Header{
		ID: h.ID, Response: true, OpCode: h.OpCode, Authoritative: ours, RecursionDesired: h.RecursionDesired,
		RecursionAvailable: true, RCode: code,
	})
	b.EnableCompression()
	return &b
}

// fail makes an answer to a message with header h: an error code, and the question q unless it is nil. The result is
// nil if the answer cannot be encoded.
func fail(h *dnsmessage.Header, q *dnsmessage.Question, code dnsmessage.RCode) []byte {
	b := respond(h, code, false)
	if q != nil && (b.StartQuestions() != nil || b.Question(*q) != nil) {
		return nil
	}
	return finish(b)
}

func finish(b *dnsmessage.Builder) []byte {
	out, err := b.Finish()
	if err != nil {
		return nil
	}
	return out
}
