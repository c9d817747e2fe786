package wire

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// Identity has the MACs from which a port may send. Unless Router is set, the port's link checks sources: it drops
// frames from other MACs, and from IP addresses that the port may not use.
//
// By using an IP address, a port whose link checks sources becomes bound to it, unless the address is reserved for
// another port or bound to one by a binding that is not idle, or the port has MaxBindings, none of them idle. In these
// cases it may not use the address, but may probe for another port's address unless that port has just probed for it.
// A port uses an address as the source of an IP packet or an ARP frame, or as the target of a neighbor advertisement
// or a redirect. It probes for an address as the target of a probe for duplicates (RFC 4862, 5.4; RFC 5227, 2.1); this
// also binds the address, if it has no binding.
type Identity struct {
	MAC     MAC           // the port's own MAC; zero: none
	Learn   bool          // the port's MAC is the source of its first accepted frame since Attach or Link.Forget, not MAC
	Also    []MAC         // other MACs that the port may use, while no other port does
	Any     bool          // the port may use any MAC, while no other port does
	Router  bool          // the link does not check sources
	Refused func(Refusal) // reports refused frames, on the goroutine that sends them (ReportEvery); may be nil
}

// Refusal is a refused frame, and the number of frames refused for the same reason since the last report.
type Refusal struct {
	Link   *Link
	Reason DropReason // DropMAC or DropAddress
	MAC    MAC        // the refused MAC: the frame's source, or in ARP or neighbor discovery; for DropAddress the source
	Addr   netip.Addr // the refused IP address, for DropAddress
	Holder string     // name of the port bound to the address, else for which, else by which it is reserved; "": none
	Full   bool       // without Holder: the port has MaxBindings IP addresses, or MACs
	More   uint64     // other frames refused for Reason since the last report
}

// Bounds of a port's bindings, and of reports.
const (
	// MaxBindings is the most IP addresses of a port, beside those reserved for it, and the most MACs, beside
	// its own.
	MaxBindings = 64
	// BindingIdle is the time after which a binding is idle, counted from when another port first wanted the address, or
	// its own port lacked room, if the port has not used it since (bindings.want). For leases and probes see idle.
	BindingIdle = time.Minute
	// ReportEvery is the shortest interval between two calls of Identity.Refused, for each reason.
	ReportEvery = time.Minute
	// probeIdle is the time after which the binding of an address that its port has only probed for is idle, counted from
	// the latest probe; until then other ports may not probe for it.
	probeIdle = 10 * time.Second
	// wantedAgain is how old the last recorded use of an address must be before its port has to show again that
	// it uses the address.
	wantedAgain = 10 * time.Second
)

// ErrIdentity is in the error of Attach for an Identity whose MAC is a group's or another port's own (errors.Is).
var ErrIdentity = errors.New("bad identity")

// source is a MAC or an IP address. Shorter addresses are in the first bytes, as in splitter.Flow; the rest
// is 0.
type source struct {
	b    [16]byte
	kind kind
}

type kind uint8

const (
	kindIPv4 kind = iota
	kindIPv6
	kindMAC
)

func (m MAC) source() (s source) {
	copy(s.b[:], m[:])
	s.kind = kindMAC
	return s
}

func source4(b []byte) (s source) {
	copy(s.b[:4], b)
	return s
}

func source6(b []byte) (s source) {
	copy(s.b[:], b)
	s.kind = kindIPv6
	return s
}

func sourceOf(a netip.Addr) source {
	if a.Is4() {
		b := a.As4()
		return source4(b[:])
	}
	b := a.As16()
	return source6(b[:])
}

func (s source) addr() netip.Addr {
	switch s.kind {
	case kindIPv4:
		return netip.AddrFrom4([4]byte(s.b[:4]))
	case kindIPv6:
		return netip.AddrFrom16(s.b)
	}
	return netip.Addr{}
}

func (s source) unspecified() bool { return s.b == [16]byte{} }

// unicast reports whether the address may be a machine's on the wire: it is not a group's, loopback or all zeros, and
// in IPv4 not in 0.0.0.0/8 or 255.255.255.255.
func (s source) unicast() bool {
	switch s.kind {
	case kindIPv4:
		return s.b[0] != 0 && s.b[0] != 127 && s.b[0]&0xf0 != 0xe0 && [4]byte(s.b[:4]) != [4]byte{255, 255, 255, 255}
	case kindIPv6:
		a := netip.AddrFrom16(s.b)
		return !a.IsMulticast() && !a.IsLoopback() && !a.IsUnspecified()
	}
	return s.b[0]&1 == 0 && !s.unspecified()
}

// bindings has the address bindings of a switch.
type bindings struct {
	mu     sync.Mutex
	clock  func() time.Time // nil: time.Now
	byAddr map[source]*binding
}

type binding struct {
	src        source
	by         *identity // the port that is bound to src; nil: src is reserved, and no port uses it
	isPortMAC  bool      // src is by's own MAC, configured or learned
	reservedBy *Link     // by which src is reserved; nil: it is not
	mac        MAC       // if reserved: Identity.MAC of the port for which it is reserved
	used       bool      // the port has sent from src, or has leased it
	probed     bool      // the latest recorded use was a probe for duplicates
	until      time.Time // end of the latest lease; zero: none
	seen       time.Time // the latest recorded use
	wanted     time.Time // since then the port has to show that it still uses the address; zero: it need not
}

// fixed reports whether the address is a port's own MAC, or reserved. Such a binding does not count towards
// MaxBindings, and is never idle.
func (c *binding) fixed() bool { return c.isPortMAC || c.reservedBy != nil }

// idle reports whether the binding may be removed for another port, or for another address of the same port.
func (c *binding) idle(now time.Time) bool {
	switch {
	case c.fixed() || now.Before(c.until):
		return false
	case !c.until.IsZero():
		return true
	case !c.used:
		return now.Sub(c.seen) >= probeIdle
	}
	return !c.wanted.IsZero() && now.Sub(c.wanted) >= BindingIdle
}

type identity struct {
	Identity
	link    *Link
	allowed atomic.Pointer[sources]

	learned    MAC
	movable    [2][]*binding // not fixed ones: of IP addresses, of MACs; bindings.mu guards it, learned and the next two
	reported   [2]time.Time  // when Refused was last called for DropMAC, for DropAddress
	unreported [2]uint64     // frames refused since then
}

// sources are the addresses that a link accepts from its port without a look at the bindings; immutable.
type sources struct {
	macs  []MAC
	addrs [2][][16]byte // by kindIPv4 and kindIPv6
}

func (h *sources) hasMAC(m MAC) bool {
	for i := range h.macs {
		if h.macs[i] == m {
			return true
		}
	}
	return false
}

func (h *sources) hasAddr(k kind, b *[16]byte) bool {
	list := h.addrs[k]
	for i := range list {
		if list[i] == *b {
			return true
		}
	}
	return false
}

func (h *sources) has(s source) bool {
	if s.kind == kindMAC {
		return h.hasMAC(MAC(s.b[:6]))
	}
	return h.hasAddr(s.kind, &s.b)
}

func (h *sources) with(s source) *sources {
	if h.has(s) {
		return h
	}
	n := *h
	if s.kind == kindMAC {
		n.macs = append(slices.Clone(h.macs), MAC(s.b[:6]))
	} else {
		n.addrs[s.kind] = append(slices.Clone(h.addrs[s.kind]), s.b)
	}
	return &n
}

func (h *sources) without(s source) *sources {
	if !h.has(s) {
		return h
	}
	n := *h
	if s.kind == kindMAC {
		n.macs = slices.DeleteFunc(slices.Clone(h.macs), func(m MAC) bool { return m == MAC(s.b[:6]) })
	} else {
		n.addrs[s.kind] = slices.DeleteFunc(slices.Clone(h.addrs[s.kind]), func(b [16]byte) bool { return b == s.b })
	}
	return &n
}

// enter makes the identity of a link that is being attached (nil if o is nil), and binds its MAC. It fails if the MAC
// is a group's or another port's own.
func (r *bindings) enter(o *Identity) (*identity, error) {
	if o == nil {
		return nil, nil
	}
	d := &identity{Identity: *o}
	d.Also = slices.Clone(o.Also)
	d.allowed.Store(new(sources))
	s := d.MAC.source()
	if d.MAC != (MAC{}) && !s.unicast() {
		return nil, fmt.Errorf("%w: %x is a group's address", ErrIdentity, d.MAC)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.byAddr == nil {
		r.byAddr = map[source]*binding{}
	}
	if d.MAC != (MAC{}) {
		if c := r.byAddr[s]; c != nil && c.isPortMAC {
			return nil, fmt.Errorf("%w: %x is the address of port %s", ErrIdentity, d.MAC, c.by.link.Name())
		}
		r.drop(s)
		r.byAddr[s] = &binding{src: s, by: d, isPortMAC: true}
		if !d.Learn {
			d.allowed.Store(d.allowed.Load().with(s))
		}
	}
	return d, nil
}

func (r *bindings) leave(l *Link) {
	if l.who == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for s, c := range r.byAddr {
		switch {
		case c.reservedBy == l:
			r.drop(s)
		case c.by == l.who && c.reservedBy != nil:
			c.by = nil
		case c.by == l.who:
			r.drop(s)
		}
	}
}

// Forget removes the port's bindings, a learned MAC's too, but not its configured MAC's. It is for when another guest
// may be behind the port; none of the port's packets may be in flight. Reserved addresses stay reserved.
func (l *Link) Forget() {
	if l.who == nil {
		return
	}
	r, d := &l.sw.names, l.who
	r.mu.Lock()
	defer r.mu.Unlock()
	mac := d.MAC.source()
	for s, c := range r.byAddr {
		switch {
		case c.by != d || s == mac:
		case c.reservedBy != nil:
			c.by, c.used, c.probed = nil, false, false
		default:
			r.drop(s)
		}
	}
	d.learned = MAC{}
	h := new(sources)
	if d.MAC != (MAC{}) && !d.Learn {
		h = h.with(mac)
	}
	d.allowed.Store(h)
}

// Reserve reserves addresses for the port whose Identity.MAC is mac, which need not exist yet, while the link l is
// attached. l must have an Identity. Reserve skips addresses that are reserved already, and ends other bindings of the
// addresses.
func (l *Link) Reserve(mac MAC, addrs ...netip.Addr) {
	r := &l.sw.names
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.byAddr == nil {
		r.byAddr = map[source]*binding{}
	}
	for _, a := range addrs {
		s := sourceOf(a)
		if c := r.byAddr[s]; c != nil && c.reservedBy != nil {
			continue
		}
		r.drop(s)
		r.byAddr[s] = &binding{src: s, reservedBy: l, mac: mac}
	}
}

// Lease binds an address to the port that is bound to mac; the binding is not idle before until. It returns false if
// the port may not have the address: another port's binding of it is not idle, or there is no room. It does not change
// a reserved address, and returns whether that is reserved for the port. If no port is bound to mac, it returns true.
func (s *Switch) Lease(mac MAC, addr netip.Addr, until time.Time) bool {
	return s.names.lease(mac, addr, &until)
}

// MayLease reports whether Lease may give an address to the port that is bound to mac. It returns false if the address
// is reserved for another port, or bound to one by a binding that is not idle; then the call also counts as another
// port's want of the address (BindingIdle). If no port is bound to mac, it returns true.
func (s *Switch) MayLease(mac MAC, addr netip.Addr) bool { return s.names.lease(mac, addr, nil) }

// Holds reports whether an address is bound to the port that is bound to mac. If no port is bound to mac, it returns
// true.
func (s *Switch) Holds(mac MAC, addr netip.Addr) bool {
	r := &s.names
	r.mu.Lock()
	defer r.mu.Unlock()
	d, c := r.holder(mac.source()), r.byAddr[sourceOf(addr)]
	return d == nil || c != nil && c.by == d
}

// EndLease removes the binding of an address to the port that is bound to mac, unless the address is reserved.
func (s *Switch) EndLease(mac MAC, addr netip.Addr) {
	r := &s.names
	r.mu.Lock()
	defer r.mu.Unlock()
	d, a := r.holder(mac.source()), sourceOf(addr)
	if c := r.byAddr[a]; d != nil && c != nil && c.by == d && !c.fixed() {
		r.drop(a)
	}
}

func (r *bindings) lease(mac MAC, addr netip.Addr, until *time.Time) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	d, a := r.holder(mac.source()), sourceOf(addr)
	if d == nil {
		return true
	}
	now := r.now()
	c := r.byAddr[a]
	if c != nil && c.reservedBy != nil {
		return c.mac == d.MAC
	}
	if until == nil {
		if c == nil || c.by == d || c.idle(now) {
			return true
		}
		r.want(c, now)
		return false
	}
	if ok, _ := r.bind(d, a, false, now); !ok {
		return false
	}
	r.byAddr[a].until = *until
	return true
}

// holder returns the port that is bound to an address, or nil. The caller holds mu.
func (r *bindings) holder(s source) *identity {
	if c := r.byAddr[s]; c != nil {
		return c.by
	}
	return nil
}

func (r *bindings) now() time.Time {
	if r.clock != nil {
		return r.clock()
	}
	return time.Now()
}

// drop removes the binding of an address, if there is one. The caller holds mu.
func (r *bindings) drop(s source) {
	c := r.byAddr[s]
	if c == nil {
		return
	}
	delete(r.byAddr, s)
	if d := c.by; d != nil {
		d.allowed.Store(d.allowed.Load().without(s))
		list := d.like(s)
		*list = slices.DeleteFunc(*list, func(o *binding) bool { return o == c })
	}
}

// like returns d's list in movable for bindings of the same kind as s. The caller holds bindings.mu.
func (d *identity) like(s source) *[]*binding {
	if s.kind == kindMAC {
		return &d.movable[1]
	}
	return &d.movable[0]
}

// allow binds an address to the port (bind, bindMAC), or returns why the port may not send from it, and reports that
// to Refused, once in ReportEvery. probe: the port only probes for duplicates. It takes the lock of the bindings, and
// calls Refused without it.
func (d *identity) allow(s source, probe bool, mac MAC) DropReason {
	r := &d.link.sw.names
	r.mu.Lock()
	now := r.now()
	var ok bool
	var c *binding
	if s.kind == kindMAC {
		ok, c = r.bindMAC(d, s, now)
	} else {
		ok, c = r.bind(d, s, probe, now)
	}
	if ok {
		r.mu.Unlock()
		return DropNone
	}
	reason := DropAddress
	if s.kind == kindMAC {
		reason = DropMAC
	}
	reported, unreported := &d.reported[reason-DropMAC], &d.unreported[reason-DropMAC]
	if d.Refused == nil || !reported.IsZero() && now.Sub(*reported) < ReportEvery {
		*unreported++
		r.mu.Unlock()
		return reason
	}
	f := Refusal{Link: d.link, Reason: reason, MAC: mac, Addr: s.addr(), More: *unreported}
	*reported, *unreported = now, 0
	if c != nil {
		f.Holder = r.name(c)
	} else {
		f.Full = s.unicast() && len(*d.like(s)) >= MaxBindings
	}
	r.mu.Unlock()
	d.Refused(f)
	return reason
}

// name returns Refusal.Holder. The caller holds mu.
func (r *bindings) name(c *binding) string {
	d := c.by
	if d == nil {
		d = r.holder(c.mac.source())
	}
	if d == nil {
		return c.reservedBy.Name()
	}
	return d.link.Name()
}

// bindMAC reports whether a port may send from a MAC, and if so binds it to the port. If another port's binding is the
// reason against it, it returns that. The caller holds mu.
func (r *bindings) bindMAC(d *identity, s source, now time.Time) (ok bool, other *binding) {
	m, c := MAC(s.b[:6]), r.byAddr[s]
	switch {
	case !s.unicast():
		return false, nil
	case c != nil && c.by != d && (c.isPortMAC || !c.idle(now)):
		if !c.isPortMAC && (d.Any || slices.Contains(d.Also, m)) {
			r.want(c, now)
		}
		return false, c
	case d.Learn && d.learned == MAC{} && !d.Router:
		if c == nil || c.by != d {
			r.drop(s)
			r.byAddr[s] = &binding{src: s, by: d, isPortMAC: true}
		}
		d.learned = m
	case m == d.learned, m == d.MAC && !d.Learn && m != MAC{}:
	case d.Any || slices.Contains(d.Also, m):
		if c == nil || !c.isPortMAC { // otherwise it is the configured MAC, which the port has not learned
			return r.bind(d, s, false, now)
		}
	default:
		return false, nil
	}
	d.allowed.Store(d.allowed.Load().with(s))
	return true, nil
}

// bind reports whether a port may use an address, and if so binds it to the port, except for a probe for another port's
// address. If another port's binding is the reason against it, it returns that. The caller holds mu.
func (r *bindings) bind(d *identity, s source, probe bool, now time.Time) (ok bool, other *binding) {
	if !s.unicast() {
		return false, nil
	}
	c := r.byAddr[s]
	if c != nil && c.by != d {
		reserved := c.reservedBy != nil && c.mac == d.MAC && d.MAC != MAC{}
		switch {
		case reserved:
			c.by = d
		case probe && !(c.probed && now.Sub(c.seen) < probeIdle):
			return true, nil // the port that uses the address may answer the probe
		case probe || !c.idle(now):
			r.want(c, now)
			return false, c
		default:
			r.drop(s)
			c = nil
		}
	}
	if c == nil {
		list := d.like(s)
		if len(*list) >= MaxBindings && !r.makeRoom(*list, now) {
			return false, nil
		}
		c = &binding{src: s, by: d}
		r.byAddr[s] = c
		if *list = append(*list, c); len(*list) == MaxBindings {
			for _, o := range *list {
				r.want(o, now) // so that makeRoom finds idle ones later
			}
		}
	}
	c.seen, c.wanted, c.probed, c.used = now, time.Time{}, probe, c.used || !probe
	if h := d.allowed.Load(); probe {
		d.allowed.Store(h.without(s)) // so that its next use is recorded
	} else {
		d.allowed.Store(h.with(s))
	}
	return true, nil
}

// want records that another port wants an address, or that its own port needs room, if neither is recorded yet; but
// not for a fixed binding, or an address that was used less than wantedAgain ago. After that the link records the next
// use of the address (bind). The caller holds mu.
func (r *bindings) want(c *binding, now time.Time) {
	if c.by == nil || c.fixed() || !c.wanted.IsZero() || now.Sub(c.seen) < wantedAgain {
		return
	}
	c.wanted = now
	c.by.allowed.Store(c.by.allowed.Load().without(c.src))
}

// makeRoom removes the least recently used of the idle bindings in list; false: none is idle. It calls want for all.
// The caller holds mu.
func (r *bindings) makeRoom(list []*binding, now time.Time) bool {
	var found *binding
	for _, c := range list {
		if c.idle(now) && (found == nil || c.seen.Before(found.seen)) {
			found = c
		}
		r.want(c, now)
	}
	if found != nil {
		r.drop(found.src)
	}
	return found != nil
}
