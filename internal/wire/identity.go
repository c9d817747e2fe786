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

// Identity says which source addresses the frames of a port may have. What is refused is dropped
// for DropMAC or DropAddress, before the switch learns from it.
//
// An IP address belongs to the port that uses it first, if nobody else has it: as source of an IP
// packet or of an ARP frame, as target of a neighbor advertisement, or as what a probe for
// duplicates asks for (RFC 4862, 5.4; RFC 5227, 2.1).
type Identity struct {
	MAC     MAC           // the port's own, from which no other port sends; zero: none
	Learn   bool          // it sends from the MAC of its first frame since Link.Forget, and not from MAC
	Also    []MAC         // it may send from these too, unless another port does
	Any     bool          // and from any MAC that no other port has
	Router  bool          // it is not checked, as it forwards others' packets; MAC is its own all the same
	Refused func(Refusal) // told of what is refused, see TellEvery, by the sender's goroutine; nil: nobody
}

// Refusal is a frame that was refused, and how many others were for the same reason since the last
// one that was told.
type Refusal struct {
	Link   *Link
	Reason DropReason // DropMAC or DropAddress
	MAC    MAC        // the frame's source, or that which ARP or neighbor discovery named
	Addr   netip.Addr // of DropAddress
	Holder string     // the port that has it; "": nobody
	Full   bool       // nobody has it, but the port has MaxClaims
	More   uint64
}

// Bounds of what a port claims.
const (
	// MaxClaims is how many IP addresses a port has, beside those that are reserved for it, and how
	// many MACs, beside its own. One more is refused, unless one of them is idle.
	MaxClaims = 64
	// ClaimIdle is how long an address was not used that another port may take, or that makes room
	// for another of the same port. The time counts from when it was first wanted by somebody.
	ClaimIdle = time.Minute
	// TellEvery is how often Identity.Refused is told at most, of each reason.
	TellEvery = time.Minute
	// probeIdle is that of an address that a probe for duplicates asked for, and that was never
	// used.
	probeIdle = 10 * time.Second
	// wantedAgain is how long an address's last use must lie back before its port has to show again
	// that it uses it: what others want, or a port that has too many, costs the user a search a few
	// times a minute, and not at each frame.
	wantedAgain = 10 * time.Second
)

// ErrIdentity is that of an Identity that cannot be.
var ErrIdentity = errors.New("bad identity")

// source is what a frame says that it comes from: a MAC or an IP address. IPv4 and MAC addresses lie
// in the first bytes, as in splitter.Flow, the rest is 0.
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

// addr is the IP address; none of a MAC.
func (s source) addr() netip.Addr {
	switch s.kind {
	case kindIPv4:
		return netip.AddrFrom4([4]byte(s.b[:4]))
	case kindIPv6:
		return netip.AddrFrom16(s.b)
	}
	return netip.Addr{}
}

// unspecified says whether it is 0.0.0.0 or ::, which each port may use.
func (s source) unspecified() bool { return s.b == [16]byte{} }

// unicast says whether it may be somebody's address.
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

// registry knows which port of a switch has which address. Frames whose addresses their port has
// used before do not get here: see identity.held.
type registry struct {
	mu     sync.Mutex
	clock  func() time.Time // nil: time.Now
	claims map[source]*claim
}

// claim is an address that somebody has.
type claim struct {
	at     source
	by     *identity // nil: nobody uses it, and it is reserved
	own    bool      // a MAC that is nobody else's while its port is there
	lessor *Link     // it is reserved, by this one
	mac    MAC       // for the port that has this as its Identity.MAC
	used   bool      // its port has sent from it
	probed bool      // the last that its port did was to ask whether somebody has it
	until  time.Time // it is leased
	seen   time.Time // last use that came here
	wanted time.Time // since then its user has to come here, to show that it is one; zero: not so
}

// bound says whether the claim does not count for its port, and does not end by itself.
func (c *claim) bound() bool { return c.own || c.lessor != nil }

// idle says whether the claim has ended.
func (c *claim) idle(now time.Time) bool {
	switch {
	case c.bound() || now.Before(c.until):
		return false
	case !c.until.IsZero():
		return true // its lease has run out
	case !c.used:
		return now.Sub(c.seen) >= probeIdle
	}
	return !c.wanted.IsZero() && now.Sub(c.wanted) >= ClaimIdle
}

// identity is a link's.
type identity struct {
	Identity
	link *Link
	held atomic.Pointer[sources]

	// under the registry's mu
	learned MAC
	mine    [2][]*claim  // that are not bound: IP addresses, MACs
	told    [2]time.Time // when Refused was called last: for DropMAC, for DropAddress
	more    [2]uint64    // refused since
}

// sources are the addresses that a port's frames may have without a look into the registry;
// immutable.
type sources struct {
	macs  []MAC
	addrs [2][][16]byte // by kind
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

// enter makes the identity of a link that is to be attached; nil for nil.
func (r *registry) enter(o *Identity) (*identity, error) {
	if o == nil {
		return nil, nil
	}
	d := &identity{Identity: *o}
	d.Also = slices.Clone(o.Also)
	d.held.Store(new(sources))
	s := d.MAC.source()
	if d.MAC != (MAC{}) && !s.unicast() {
		return nil, fmt.Errorf("%w: %x is a group's address", ErrIdentity, d.MAC)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.claims == nil {
		r.claims = map[source]*claim{}
	}
	if d.MAC != (MAC{}) {
		if c := r.claims[s]; c != nil && c.own {
			return nil, fmt.Errorf("%w: %x is the address of port %s", ErrIdentity, d.MAC, c.by.link.Name())
		}
		r.drop(s)
		r.claims[s] = &claim{at: s, by: d, own: true}
		if !d.Learn {
			d.held.Store(d.held.Load().with(s))
		}
	}
	return d, nil
}

// leave forgets a link.
func (r *registry) leave(l *Link) {
	if l.who == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for s, c := range r.claims {
		switch {
		case c.lessor == l:
			r.drop(s)
		case c.by == l.who && c.lessor != nil:
			c.by = nil
		case c.by == l.who:
			r.drop(s)
		}
	}
}

// Forget says that another guest may be at the port: all that it claimed is free, and a MAC that was
// learned is too. What is reserved for it stays. Nothing of the port may be under way.
func (l *Link) Forget() {
	if l.who == nil {
		return
	}
	r, d := &l.sw.names, l.who
	r.mu.Lock()
	defer r.mu.Unlock()
	own := d.MAC.source()
	for s, c := range r.claims {
		switch {
		case c.by != d || s == own:
		case c.lessor != nil:
			c.by, c.used, c.probed = nil, false, false
		default:
			r.drop(s)
		}
	}
	d.learned = MAC{}
	h := new(sources)
	if d.MAC != (MAC{}) && !d.Learn {
		h = h.with(own)
	}
	d.held.Store(h)
}

// Reserve keeps addresses for the port whose Identity.MAC is mac, which need not be there yet, as
// long as the link is attached: no other port has them, and none that has one now keeps it.
func (l *Link) Reserve(mac MAC, addrs ...netip.Addr) {
	r := &l.sw.names
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.claims == nil {
		r.claims = map[source]*claim{}
	}
	for _, a := range addrs {
		s := sourceOf(a)
		if c := r.claims[s]; c != nil && c.lessor != nil {
			continue // the first reservation stands
		}
		r.drop(s)
		r.claims[s] = &claim{at: s, lessor: l, mac: mac}
	}
}

// Lease claims an address for the port that has mac, until a time, whether it uses it or not. It is
// false if another port has the address. Where no port with an Identity has mac, nobody's address is
// checked.
func (s *Switch) Lease(mac MAC, addr netip.Addr, until time.Time) bool {
	return s.names.lease(mac, addr, &until)
}

// MayLease says whether Lease would succeed.
func (s *Switch) MayLease(mac MAC, addr netip.Addr) bool { return s.names.lease(mac, addr, nil) }

// Holds says whether an address is that of the port that has mac. Where no port with an Identity
// has it, nobody's address is checked.
func (s *Switch) Holds(mac MAC, addr netip.Addr) bool {
	r := &s.names
	r.mu.Lock()
	defer r.mu.Unlock()
	d, c := r.holder(mac.source()), r.claims[sourceOf(addr)]
	return d == nil || c != nil && c.by == d
}

// EndLease says that the port that has mac does not use an address any more.
func (s *Switch) EndLease(mac MAC, addr netip.Addr) {
	r := &s.names
	r.mu.Lock()
	defer r.mu.Unlock()
	d, a := r.holder(mac.source()), sourceOf(addr)
	if c := r.claims[a]; d != nil && c != nil && c.by == d && !c.bound() {
		r.drop(a)
	}
}

func (r *registry) lease(mac MAC, addr netip.Addr, until *time.Time) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	d, a := r.holder(mac.source()), sourceOf(addr)
	if d == nil {
		return true
	}
	now := r.now()
	c := r.claims[a]
	if c != nil && c.lessor != nil {
		return c.mac == d.MAC
	}
	if until == nil {
		if c == nil || c.by == d || c.idle(now) {
			return true
		}
		r.want(c, now)
		return false
	}
	if ok, _ := r.claim(d, a, false, now); !ok {
		return false
	}
	r.claims[a].until = *until
	return true
}

// holder is the identity that has a MAC; nil: none. Under mu.
func (r *registry) holder(s source) *identity {
	if c := r.claims[s]; c != nil {
		return c.by
	}
	return nil
}

func (r *registry) now() time.Time {
	if r.clock != nil {
		return r.clock()
	}
	return time.Now()
}

// drop ends a claim. Under mu.
func (r *registry) drop(s source) {
	c := r.claims[s]
	if c == nil {
		return
	}
	delete(r.claims, s)
	if d := c.by; d != nil {
		d.held.Store(d.held.Load().without(s))
		list := d.like(s)
		*list = slices.DeleteFunc(*list, func(o *claim) bool { return o == c })
	}
}

// like gives the list that the claim of an address is in. Under the registry's mu.
func (d *identity) like(s source) *[]*claim {
	if s.kind == kindMAC {
		return &d.mine[1]
	}
	return &d.mine[0]
}

// allow says whether a port may send from an address, and claims it: probe, if it only asks whether
// it is somebody's. It looks into the registry, and tells of a refusal.
func (d *identity) allow(s source, probe bool, mac MAC) DropReason {
	r := &d.link.sw.names
	r.mu.Lock()
	now := r.now()
	var ok bool
	var c *claim // of another
	if s.kind == kindMAC {
		ok, c = r.claimMAC(d, s, now)
	} else {
		ok, c = r.claim(d, s, probe, now)
	}
	if ok {
		r.mu.Unlock()
		return DropNone
	}
	reason := DropAddress
	if s.kind == kindMAC {
		reason = DropMAC
	}
	told, more := &d.told[reason-DropMAC], &d.more[reason-DropMAC]
	if d.Refused == nil || !told.IsZero() && now.Sub(*told) < TellEvery {
		*more++
		r.mu.Unlock()
		return reason
	}
	f := Refusal{Link: d.link, Reason: reason, MAC: mac, Addr: s.addr(), More: *more}
	*told, *more = now, 0
	if c != nil {
		f.Holder = r.name(c)
	} else {
		f.Full = s.unicast() && len(*d.like(s)) >= MaxClaims
	}
	r.mu.Unlock()
	d.Refused(f)
	return reason
}

// name is that of the port that has an address. Under mu.
func (r *registry) name(c *claim) string {
	d := c.by
	if d == nil {
		d = r.holder(c.mac.source())
	}
	if d == nil {
		return c.lessor.Name()
	}
	return d.link.Name()
}

// claimMAC says whether a port may send from a MAC. If not, it gives who has it. Under mu.
func (r *registry) claimMAC(d *identity, s source, now time.Time) (ok bool, other *claim) {
	m, c := MAC(s.b[:6]), r.claims[s]
	switch {
	case !s.unicast():
		return false, nil
	case c != nil && c.by != d && (c.own || !c.idle(now)):
		if !c.own && (d.Any || slices.Contains(d.Also, m)) {
			r.want(c, now)
		}
		return false, c
	case d.Learn && d.learned == MAC{} && !d.Router:
		if c == nil || c.by != d {
			r.drop(s)
			r.claims[s] = &claim{at: s, by: d, own: true}
		}
		d.learned = m
	case m == d.learned, m == d.MAC && !d.Learn && m != MAC{}:
	case d.Any || slices.Contains(d.Also, m):
		if c == nil || !c.own { // else it is that which it was to have, and has not learned
			return r.claim(d, s, false, now)
		}
	default:
		return false, nil
	}
	d.held.Store(d.held.Load().with(s))
	return true, nil
}

// claim says whether a port may use an address, and notes that it does. If not, it gives who has it,
// nil if nobody may or the port has too many. Under mu.
func (r *registry) claim(d *identity, s source, probe bool, now time.Time) (ok bool, other *claim) {
	if !s.unicast() {
		return false, nil
	}
	c := r.claims[s]
	if c != nil && c.by != d {
		mine := c.lessor != nil && c.mac == d.MAC && d.MAC != MAC{}
		switch {
		case mine:
			c.by = d
		case probe && !(c.probed && now.Sub(c.seen) < probeIdle):
			return true, nil // whoever has it answers
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
		if len(*list) >= MaxClaims && !r.makeRoom(*list, now) {
			return false, nil
		}
		c = &claim{at: s, by: d}
		r.claims[s] = c
		if *list = append(*list, c); len(*list) == MaxClaims {
			for _, o := range *list {
				r.want(o, now) // so that those that are idle are known when there is to be another
			}
		}
	}
	c.seen, c.wanted, c.probed, c.used = now, time.Time{}, probe, c.used || !probe
	if h := d.held.Load(); probe {
		d.held.Store(h.without(s)) // its next use is to come here
	} else {
		d.held.Store(h.with(s))
	}
	return true, nil
}

// want notes that somebody would like to have an address: the next time that its port uses it, the
// registry hears of it. Under mu.
func (r *registry) want(c *claim, now time.Time) {
	if c.by == nil || c.bound() || !c.wanted.IsZero() || now.Sub(c.seen) < wantedAgain {
		return
	}
	c.wanted = now
	c.by.held.Store(c.by.held.Load().without(c.at))
}

// makeRoom ends that claim of a port's that is idle for longest; false if none is. Under mu.
func (r *registry) makeRoom(list []*claim, now time.Time) bool {
	var found *claim
	for _, c := range list {
		if c.idle(now) && (found == nil || c.seen.Before(found.seen)) {
			found = c
		}
		r.want(c, now)
	}
	if found != nil {
		r.drop(found.at)
	}
	return found != nil
}
