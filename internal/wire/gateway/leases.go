package gateway

import (
	"net/netip"
	"slices"
	"sync"
	"time"

	"vnic.dev/vnic/internal/wire"
)

const (
	poolSize  = 128              // most addresses for MACs of no Host
	leaseTime = 2 * time.Hour    // long, because a client may be stopped when it has to renew
	offerTime = 20 * time.Second // how long leases.offer keeps an address for its client
	badTime   = 10 * time.Minute // how long leases.decline withholds an address (RFC 2131, 4.3.3)
)

type leases struct {
	hosts map[wire.MAC]*Host // Hosts with a MAC and an IPv4 address
	none  map[wire.MAC]bool  // MACs of Hosts without Addr4
	sw    *wire.Switch       // nil: no checks of its address bindings

	mu   sync.Mutex
	pool []lease // sorted by address
}

type lease struct {
	addr  netip.Addr
	owner wire.MAC // zero: none
	until time.Time
}

// newLeases makes a pool of at most poolSize addresses of Prefix4 that neither the gateway nor a Host has.
func newLeases(o *Options) *leases {
	l := &leases{hosts: map[wire.MAC]*Host{}, none: map[wire.MAC]bool{}}
	p := o.Prefix4
	if !p.IsValid() {
		return l
	}
	taken := map[netip.Addr]bool{p.Addr(): true}
	for i := range o.Hosts {
		h := &o.Hosts[i]
		if !h.Addr4.IsValid() {
			if h.MAC != (wire.MAC{}) {
				l.none[h.MAC] = true
			}
			continue
		}
		taken[h.Addr4] = true
		if h.MAC != (wire.MAC{}) {
			l.hosts[h.MAC] = h
		}
	}
	last := lastOf(p)
	for a := p.Masked().Addr().Next(); a != last && len(l.pool) < poolSize; a = a.Next() {
		if !taken[a] {
			l.pool = append(l.pool, lease{addr: a})
		}
	}
	return l
}

// offer returns an address for a client: for the MAC of a Host its Addr4; otherwise one of the pool that the switch
// lets the client have: the address of its last lease or offer, also an expired one; or want, if that is free; or the
// one that has been free for longest; false: there is none. It keeps an address that is not leased for the client for
// offerTime.
func (l *leases) offer(mac wire.MAC, want netip.Addr, now time.Time) (netip.Addr, bool) {
	if h := l.hosts[mac]; h != nil {
		return h.Addr4, true
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	x := l.byMAC(mac)
	if x == nil || !l.may(mac, x) {
		if x = l.byAddr(want); x == nil || !x.free(now) || !l.may(mac, x) {
			x = l.oldest(mac, now)
		}
	}
	if x == nil {
		return netip.Addr{}, false
	}
	if x.owner != mac || x.free(now) {
		x.owner, x.until = mac, now.Add(offerTime)
	}
	return x.addr, true
}

// confirm leases an address of the pool to a client for leaseTime, and ends its lease of any other address;
// false: the client may not have it. For a Host it only compares the address.
func (l *leases) confirm(mac wire.MAC, addr netip.Addr, now time.Time) bool {
	if h := l.hosts[mac]; h != nil {
		return h.Addr4 == addr
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	x := l.byAddr(addr)
	if x == nil || x.owner != mac && !x.free(now) || l.sw != nil && !l.sw.Lease(mac, addr, now.Add(leaseTime)) {
		return false
	}
	if old := l.byMAC(mac); old != nil && old != x {
		l.ended(mac, old)
		*old = lease{addr: old.addr}
	}
	x.owner, x.until = mac, now.Add(leaseTime)
	return true
}

func (l *leases) release(mac wire.MAC, addr netip.Addr) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if x := l.byAddr(addr); x != nil && x.owner == mac {
		l.ended(mac, x)
		*x = lease{addr: x.addr}
	}
}

// decline withholds an address for badTime, if mac has its lease or offer: the client has found it in use.
func (l *leases) decline(mac wire.MAC, addr netip.Addr, now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if x := l.byAddr(addr); x != nil && x.owner == mac {
		l.ended(mac, x)
		x.owner, x.until = wire.MAC{}, now.Add(badTime)
	}
}

// taken returns how many addresses of the pool are leased, offered or withheld.
func (l *leases) taken() (n int64) {
	now := time.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := range l.pool {
		if !l.pool[i].free(now) {
			n++
		}
	}
	return n
}

// The caller holds mu.
func (l *leases) may(mac wire.MAC, x *lease) bool { return l.sw == nil || l.sw.MayLease(mac, x.addr) }

// The caller holds mu.
func (l *leases) ended(mac wire.MAC, x *lease) {
	if l.sw != nil {
		l.sw.EndLease(mac, x.addr)
	}
}

func (x *lease) free(now time.Time) bool { return !now.Before(x.until) }

// byMAC also finds an address whose lease has expired. The caller holds mu.
func (l *leases) byMAC(mac wire.MAC) *lease {
	return l.find(func(x lease) bool { return x.owner == mac && mac != (wire.MAC{}) })
}

// The caller holds mu.
func (l *leases) byAddr(a netip.Addr) *lease {
	return l.find(func(x lease) bool { return x.addr == a })
}

func (l *leases) find(match func(lease) bool) *lease {
	if i := slices.IndexFunc(l.pool, match); i >= 0 {
		return &l.pool[i]
	}
	return nil
}

// oldest finds, of the addresses that the switch lets mac have, the one that has been free for longest; nil: none is
// free. The caller holds mu.
func (l *leases) oldest(mac wire.MAC, now time.Time) (found *lease) {
	for i := range l.pool {
		if x := &l.pool[i]; x.free(now) && (found == nil || x.until.Before(found.until)) && l.may(mac, x) {
			found = x
		}
	}
	return found
}
