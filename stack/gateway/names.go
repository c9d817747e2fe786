package gateway

import (
	"net/netip"
	"strings"

	"golang.org/x/net/dns/dnsmessage"
)

const (
	domain  = "vnic" // of all names that the gateway knows, which have it or not
	nameTTL = 30     // seconds
)

// names are the names that the gateway knows; immutable.
type names struct {
	addrs map[string][2]netip.Addr // IPv4 and IPv6, by name in lower case
}

func newNames(o *Options) *names {
	n := &names{addrs: map[string][2]netip.Addr{GatewayName: {o.Prefix4.Addr(), o.Prefix6.Addr()}}}
	for _, h := range o.Hosts {
		if h.Name != "" {
			n.addrs[strings.ToLower(h.Name)] = [2]netip.Addr{h.Addr4, h.Addr6}
		}
	}
	return n
}

// lookup finds a name. ours: if it is not found, it does not exist.
func (n *names) lookup(name string) (addrs [2]netip.Addr, found, ours bool) {
	name, ours = strings.CutSuffix(strings.ToLower(strings.TrimSuffix(name, ".")), "."+domain)
	addrs, found = n.addrs[name]
	return addrs, found, ours || name == domain
}

// answer answers a question about a name that is ours; nil if it is not.
func (n *names) answer(h *dnsmessage.Header, q *dnsmessage.Question) []byte {
	addrs, found, ours := n.lookup(q.Name.String())
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
	var err error
	if a := addrs[0]; a.IsValid() && (q.Type == dnsmessage.TypeA || q.Type == dnsmessage.TypeALL) {
		err = b.AResource(rh, dnsmessage.AResource{A: a.As4()})
	}
	if a := addrs[1]; err == nil && a.IsValid() && (q.Type == dnsmessage.TypeAAAA || q.Type == dnsmessage.TypeALL) {
		err = b.AAAAResource(rh, dnsmessage.AAAAResource{AAAA: a.As16()})
	}
	if err != nil {
		return nil
	}
	out, err := b.Finish()
	if err != nil {
		return nil
	}
	return out
}

// respond begins an answer.
func respond(h *dnsmessage.Header, code dnsmessage.RCode, ours bool) *dnsmessage.Builder {
	b := dnsmessage.NewBuilder(nil, dnsmessage.Header{
		ID: h.ID, Response: true, OpCode: h.OpCode, Authoritative: ours, RecursionDesired: h.RecursionDesired,
		RecursionAvailable: true, RCode: code,
	})
	b.EnableCompression()
	return &b
}

// fail is an answer that only says what is wrong; q may be nil.
func fail(h *dnsmessage.Header, q *dnsmessage.Question, code dnsmessage.RCode) []byte {
	b := respond(h, code, false)
	if q != nil && (b.StartQuestions() != nil || b.Question(*q) != nil) {
		return nil
	}
	out, err := b.Finish()
	if err != nil {
		return nil
	}
	return out
}
