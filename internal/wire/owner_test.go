package wire

import (
	"testing"
	"time"

	"vnic.dev/vnic/internal/testkit"
)

// Owner finds the port with an Identity whose own MAC it is (with Learn: once the port has sent from it), or which has
// sent from it, until the binding is idle or the port is detached.
func TestOwnerOfMAC(t *testing.T) {
	s := newSwitch(t)
	now := time.Now()
	s.names.clock = func() time.Time { return now }
	a := newHost(t, s, 1, LinkOptions{Identity: &Identity{MAC: MAC{2, 0, 0, 0, 0, 1}, Any: true}})
	r := newHost(t, s, 2, LinkOptions{Identity: &Identity{MAC: MAC{2, 0, 0, 0, 0, 2}, Router: true}})
	b := newHost(t, s, 3, LinkOptions{})
	owner := func(mac MAC, want *Link, wantOwn bool) {
		t.Helper()
		l, isPortMAC := s.Owner(mac)
		testkit.Equal(t, "owner", l, want)
		testkit.Equal(t, "own", isPortMAC, wantOwn)
	}
	owner(a.mac, a.link, true)
	owner(r.mac, r.link, true)
	owner(b.mac, nil, false)
	testkit.Equal(t, "router", r.link.Router(), true)
	testkit.Equal(t, "router", a.link.Router() || b.link.Router(), false)
	other := a.mac
	a.mac[5] = 9
	a.sendAll(a.packet(b.mac, spec{n: 100}))
	owner(a.mac, a.link, false)
	now = now.Add(wantedAgain)
	owner(a.mac, a.link, false) // this call marks the binding as wanted
	now = now.Add(BindingIdle)
	owner(a.mac, nil, false)
	a.mac = other
	testkit.OK(t, s.Detach(a.link))
	owner(a.mac, nil, false)
	l := newHost(t, s, 4, LinkOptions{Identity: &Identity{MAC: MAC{2, 0, 0, 0, 0, 4}, Learn: true}})
	owner(l.mac, nil, false)
	l.sendAll(l.packet(b.mac, spec{n: 100}))
	owner(l.mac, l.link, true)
	l.link.Forget()
	l.mac[5] = 5
	l.sendAll(l.packet(b.mac, spec{n: 100}))
	owner(l.mac, l.link, true)
	owner(MAC{2, 0, 0, 0, 0, 4}, nil, false)
	b.link.Refuse(DropBadFrame)
	testkit.Equal(t, "refused", b.link.Counters().Drops[DropBadFrame], 1)
}
