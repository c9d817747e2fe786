package pcap

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"testing"

	"golang.org/x/sync/errgroup"

	"vnic.dev/vnic/internal/lab"
	"vnic.dev/vnic/internal/lab/labtest"
	"vnic.dev/vnic/internal/testkit"
	"vnic.dev/vnic/internal/vfiotest"
	"vnic.dev/vnic/internal/wire"
	"vnic.dev/vnic/internal/wire/capture"
)

// TestEightGuestsAreNotHeldUp: eight guests exchange bytes while the capture's reader does not read.
func TestEightGuestsAreNotHeldUp(t *testing.T) {
	testkit.LeavesNothing(t)
	r, out, err := os.Pipe()
	testkit.OK(t, err)
	c := testkit.Must(capture.New(out, capture.Options{Records: 64, Payload: 256}))(t)
	const guests, bytes = 8, 2 << 20
	d := lab.Uniform(guests, lab.NIC{Model: lab.Virtio}, 0)
	for i := range d.Guests {
		d.Guests[i].NICs[0].Link.Up = wire.Impairment{Seed: uint64(i), Loss: 0.001}
	}
	p := &Pcap{c: c, file: "a pipe"}
	w := testkit.Must(lab.Open(d, lab.Options{Services: []lab.Service{p.Service}}))(t)
	var all [guests]*labtest.Guest
	for i := range all {
		client, server, err := vfiotest.Pair()
		testkit.OK(t, err)
		port := w.Port(i)
		port.Connected(server)
		if all[i], err = labtest.New(client, fmt.Sprintf("02:76:6e:69:00:%02x", i+1),
			[]netip.Prefix{port.Addr4}); err != nil {
			t.Fatal(err)
		}
	}
	var g errgroup.Group
	for i := range all {
		g.Go(func() error { return all[i].Exchange(t.Context(), all[(i+1)%guests], bytes) })
	}
	testkit.NoError(t, g.Wait())
	testkit.Eventually(t, "captured packets, and missed ones as the pipe was full", func() bool { // the writer may be slow
		s := c.Stats()
		return s.Missed > 0 && s.Packets > 0
	})
	for _, guest := range all {
		testkit.OK(t, guest.Close())
	}
	var seen uint64
	for i := range all {
		n := w.Port(i).NIC().Link().Counters()
		seen += n.Sent + n.Received
	}
	_ = r.Close()
	testkit.OK(t, w.Close())
	if err := c.Close(); err == nil || errors.Is(err, capture.ErrStuck) {
		t.Errorf("the pipe broke, and the capture returns %v", err)
	}
	_ = out.Close()
	// The tap also sees flooded frames that find no receive buffer.
	if s := c.Stats(); s.Packets+s.Missed < seen {
		t.Errorf("%d captured and %d missed, of %d", s.Packets, s.Missed, seen)
	}
}
