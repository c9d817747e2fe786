package serve

import (
	"net/netip"
	"path/filepath"
	"testing"

	"vnic.dev/vnic/internal/lab"
	"vnic.dev/vnic/internal/lab/labtest"
	"vnic.dev/vnic/internal/testkit"
)

// A guest may send from the MAC that its QEMU chose, but not from another port's.
func TestTheMACIsWhatQEMUGave(t *testing.T) {
	testkit.LeavesNothing(t)
	dir := t.TempDir()
	s := serve(t, Options{Paths: []string{filepath.Join(dir, "0"), filepath.Join(dir, "1")}})
	peer := s.guest(0)
	p := s.rep.Ports[1]
	for _, mac := range []string{"52:54:00:12:34:56", "02:aa:bb:cc:dd:01"} {
		g := testkit.Must(labtest.Dial(p.Socket, mac, addrs(p)))(t)
		testkit.OK(t, g.Exchange(t.Context(), peer, 10_000))
		testkit.OK(t, g.Close())
	}
	g := testkit.Must(labtest.Dial(p.Socket, s.rep.Ports[0].MAC, addrs(p)))(t)
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		if c, err := g.Dial(t.Context(), netip.AddrPort{}, netip.AddrPortFrom(addrs(s.rep.Ports[0])[0].Addr(),
			9)); err == nil {
			_ = c.Close()
		}
	}()
	s.noted("port1: mac-not-yours: the guest's frames from MAC " + s.rep.Ports[0].MAC)
	testkit.OK(t, g.Close())
	<-gone
	testkit.OK(t, peer.Close())
}

func TestAllowedMACs(t *testing.T) {
	o := Options{Paths: []string{"a", "b"}, NIC: lab.NIC{Model: lab.Virtio}}
	for _, list := range []string{"any", "02:aa:bb:cc:dd:01"} {
		o.AllowMAC = testkit.Must(lab.ParseAllowedMACs(list))(t)
		d := o.describe()
		for _, g := range d.Guests {
			id := g.NICs[0].Link.Identity
			if got := (lab.AllowedMACs{Any: id.Any, List: id.Also}); !id.Learn || got.String() != list {
				t.Errorf("%s: %+v", list, id)
			}
		}
	}
}
