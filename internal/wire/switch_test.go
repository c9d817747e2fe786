package wire

import (
	"bytes"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"testing"

	"vnic.dev/vnic/internal/testkit"
	"vnic.dev/vnic/splitter"
)

func TestUnicastGoesToOnePortOnly(t *testing.T) {
	a, b, c := three(t)
	p := a.sent(a.packet(b.mac, spec{off: 100, n: 1000, csum: splitter.CsumGood, cut: []int{1, 300}}))
	taken(t, p)
	got := b.take()
	if len(got) != 1 || !bytes.Equal(got[0].frame, append(bytes.Clone(p.Header), a.ram[100:1100]...)) {
		t.Fatalf("%d frames", len(got))
	}
	verify(t, &got[0])
	testkit.Equal(t, "frames that went elsewhere", len(c.take())+len(a.take()), 0)
	if n := a.link.Counters(); n.Sent != 2 || n.SentBytes != 42+1054 || n.Drops != [NumDropReasons]uint64{} {
		t.Errorf("%+v", n)
	}
	if n := b.link.Counters(); n.Received != 3 || n.ReceivedBytes != 2*42+1054 {
		t.Errorf("%+v", n)
	}
}

func TestUnknownAndGroupAddressesFlood(t *testing.T) {
	s := newSwitch(t)
	a, b, c := newHost(t, s, 1, LinkOptions{}), newHost(t, s, 2, LinkOptions{}), newHost(t, s, 3, LinkOptions{})
	for _, to := range []MAC{broadcast, {1, 0, 0x5e, 0, 0, 1}, b.mac, {2, 9, 9, 9, 9, 9}} {
		p := a.sent(a.arp(to))
		if p.Verdict.Kind != Taken || len(b.take()) != 1 || len(c.take()) != 1 || len(a.take()) != 0 {
			t.Errorf("to %x: %+v", to, p.Verdict)
		}
	}
	c.post(0) // c misses the flooded frame
	p := a.sent(a.arp(broadcast))
	if p.Verdict.Kind != Taken || len(b.take()) != 1 {
		t.Errorf("%+v", p.Verdict)
	}
	b.post(0)
	a.send(p)
	dropped(t, p, DropNoBuffer)
	testkit.Equal(t, "drops", c.link.Counters().Drops[DropNoBuffer], 2)
}

func TestFloodWithNobodyThere(t *testing.T) {
	s := newSwitch(t)
	a := newHost(t, s, 1, LinkOptions{})
	p := a.sent(a.arp(broadcast))
	if p.Verdict != Drop(DropUnknownDst) || a.link.Counters().Drops[DropUnknownDst] != 1 {
		t.Errorf("%+v", p.Verdict)
	}
}

// Invariant: wire: Control frames never pass the wire.
// Invariant: wire: Completing a partial checksum changes no byte by which a frame was judged, but
// for the checksum field of TCP or UDP.
func TestWhatTheWireRefuses(t *testing.T) {
	s := newSwitch(t)
	a, b := newHost(t, s, 1, LinkOptions{}), newHost(t, s, 2, LinkOptions{})
	impaired := newHost(t, s, 3, LinkOptions{Up: Impairment{Loss: 0.5}})
	meet(a, b, impaired)
	for _, from := range []*host{a, impaired} {
		for _, c := range []struct {
			name   string
			change func(p *Packet)
			want   DropReason
		}{
			{"to the control MAC", func(p *Packet) { p.Dst = ControlMAC }, DropControlMAC},
			{"from the control MAC", func(p *Packet) { p.Src = ControlMAC }, DropControlMAC},
			{"control type", func(p *Packet) { p.Header[12], p.Header[13] = 0x88, 0xb5 }, DropControlMAC},
			{"control type in a tag", func(p *Packet) { p.Meta.Headers.EtherType = EtherTypeControl }, DropControlMAC},
			{"from a group", func(p *Packet) { p.Src = broadcast }, DropBadSource},
			{"to itself", func(p *Packet) { p.Dst = p.Src }, DropSamePort},
			{"short", func(p *Packet) { p.Header = p.Header[:13] }, DropBadFrame},
			{"part of the headers", func(p *Packet) { p.Header = p.Header[:40] }, DropBadFrame},
			{"less than its IP header says", func(p *Packet) { p.PayloadLen-- }, DropBadFrame},
			{"checksum past the end", func(p *Packet) { p.Meta.Csum, p.Meta.CsumStart = splitter.CsumPartial, 1100 },
				DropBadCsum},
			{"segments of 0", func(p *Packet) { p.Meta.GSOType = splitter.GSOTCPv4 }, DropBadGSO},
		} {
			t.Run(from.Name()+" "+c.name, func(t *testing.T) {
				if c.want == DropSamePort && from == impaired {
					t.Skip("it may be lost before")
				}
				p := from.packet(b.mac, spec{n: 1000, csum: splitter.CsumGood})
				c.change(p)
				before := from.link.Counters().Drops[c.want]
				from.send(p)
				if p.Verdict != Drop(c.want) || from.link.Counters().Drops[c.want] != before+1 {
					t.Errorf("%v %v", p.Verdict.Kind, p.Verdict.Reason)
				}
				testkit.Equal(t, "frames that came", len(b.take()), 0)
			})
		}
	}
	for _, from := range []*host{a, impaired} {
		for name, p := range refused(from, b) {
			before := from.link.Counters().Drops[DropBadCsum]
			from.send(p)
			if p.Verdict != Drop(DropBadCsum) || from.link.Counters().Drops[DropBadCsum] != before+1 || len(b.take()) != 0 {
				t.Errorf("%s, checksum over %s: %v %v", from.Name(), name, p.Verdict.Kind, p.Verdict.Reason)
			}
		}
	}
	good := a.packet(b.mac, spec{n: 10})
	bad := a.packet(b.mac, spec{n: 10})
	bad.Src = ControlMAC
	good2 := a.packet(b.mac, spec{n: 10})
	a.send(good, bad, good2)
	if good.Verdict.Kind != Taken || bad.Verdict.Kind != Dropped || good2.Verdict.Kind != Taken || len(b.take()) != 2 {
		t.Error("a bad packet takes others with it")
	}
}

func TestBatchesPassInRuns(t *testing.T) {
	a, b, c := three(t)
	var batch []*Packet
	for _, n := range []struct {
		to *host
		n  int
	}{{b, 10}, {c, 1}, {b, 5}, {c, 16}} {
		for range n.n {
			batch = append(batch, a.packet(n.to.mac, spec{n: 100}))
		}
	}
	a.send(batch...)
	if !slices.Equal(b.sizes, []int{10, 5}) || !slices.Equal(c.sizes, []int{1, 16}) {
		t.Errorf("runs of %v and %v", b.sizes, c.sizes)
	}
}

// Invariant: wire: A busy port delays only its own packets.
func TestBusyPortHoldsUpItsPacketsOnly(t *testing.T) {
	a, b, c := three(t)
	b.post(2)
	var batch []*Packet
	for i := range 8 {
		to := b
		if i%2 == 1 {
			to = c
		}
		batch = append(batch, a.packet(to.mac, spec{seq: uint32(i), n: 10}))
	}
	a.send(batch...)
	for i, p := range batch {
		want := Verdict{Kind: Taken}
		if i%2 == 0 && i >= 4 {
			want = Verdict{Kind: Busy, Queue: b}
		}
		testkit.Equal(t, fmt.Sprintf("packet %d", i), p.Verdict, want)
	}
	testkit.Equal(t, "times that b was asked", len(b.sizes), 3) // the link did not call b again after it was busy
	done := make(chan struct{})
	go func() {
		defer close(done)
		a.sendAll(batch[4], batch[6])
	}()
	b.post(2)
	<-done
	var order []uint32
	for _, r := range b.take() {
		order = append(order, r.meta.Headers.Seq)
	}
	if !slices.Equal(order, []uint32{0, 2, 4, 6}) {
		t.Errorf("order %v", order)
	}
	testkit.Equal(t, "sent", a.link.Counters().Sent, 1+8)
}

func TestAddressMovesToAnotherPort(t *testing.T) {
	a, b, c := three(t)
	s := a.link.sw
	c.mac = b.mac
	meet(c)
	a.take()
	b.take()
	a.send(a.arp(b.mac))
	if len(b.take()) != 0 || len(c.take()) != 1 {
		t.Error("the old port got it")
	}
	testkit.Equal(t, "link of the address", s.Find(b.mac), c.link)
	testkit.OK(t, s.Detach(c.link))
	testkit.Equal(t, "link of the address, after its own has gone", s.Find(b.mac), nil)
}

func TestInventedAddressesDisplaceTheirInventorsOnly(t *testing.T) {
	a, b, c := three(t)
	s := a.link.sw
	mac := c.mac
	for i := range 20_000 {
		c.mac = MAC{2, 1, byte(i >> 16), byte(i >> 8), byte(i), 3}
		s.table.learn(c.mac.key(), c.link.id)
	}
	testkit.Equal(t, "addresses of one link", len(s.table.byLink[c.link.id]), maxPerLink)
	used := 0
	for i := range s.table.slots {
		for j := range s.table.slots[i] {
			if s.table.slots[i][j].Load() != 0 {
				used++
			}
		}
	}
	if used > maxPerLink+2 {
		t.Errorf("%d slots used", used)
	}
	if s.Find(a.mac) != a.link || s.Find(b.mac) != b.link || s.Find(mac) != nil {
		t.Error("others were displaced, or not its own")
	}
	c.mac = mac
	meet(c)
	testkit.Equal(t, "link of an address that comes back", s.Find(mac), c.link)
}

func TestPrepareCutsPadding(t *testing.T) {
	s := newSwitch(t)
	a := newHost(t, s, 1, LinkOptions{})
	p := a.packet(a.mac, spec{n: 2, cut: []int{1}})
	p.Payload = append(p.Payload, p.Payload[0], p.Payload[0])
	p.PayloadLen += 2
	p.Prepare()
	if p.PayloadLen != 2 || len(p.Payload) != 2 || p.Len() != 56 {
		t.Errorf("%d in %d", p.PayloadLen, len(p.Payload))
	}
	p = a.packet(a.mac, spec{})
	p.Header = append(p.Header, make([]byte, 6)...)
	p.Prepare()
	if len(p.Header) != 54 || p.Dst != a.mac || p.Src != a.mac {
		t.Errorf("%d", len(p.Header))
	}
	(&Packet{Header: []byte{1}}).Prepare()
}

// Invariant: wire: After Detach has returned, no call into the port is running.
func TestPortsComeAndGoUnderTraffic(t *testing.T) {
	a, b := pair(t)
	s := a.link.sw
	var wg sync.WaitGroup
	stop := make(chan struct{})
	for i, from := range []*host{a, b} {
		to := []*host{b, a}[i]
		var batch []*Packet
		for n := range 8 {
			dst := to.mac
			if n%4 == 3 {
				dst = MAC{2, 0, 0, 0, 0, 9} // c's MAC; c comes and goes
			} else if n%4 == 2 {
				dst = broadcast
			}
			batch = append(batch, from.packet(dst, spec{n: 500}))
		}
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				from.send(batch...)
				from.take()
			}
		})
	}
	for range 50 {
		c := newHost(t, s, 9, LinkOptions{Down: Impairment{Loss: 0.1, Reorder: 0.2}})
		c.send(c.arp(broadcast))
		<-c.arrived
		testkit.OK(t, s.Detach(c.link))
		n := len(c.take())
		if n == 0 {
			t.Error("nothing came")
		}
		late := c.sent(c.arp(broadcast))
		dropped(t, late, DropStopped)
		testkit.ErrorIs(t, s.Detach(c.link), ErrDetached, "second Detach")
		if n := len(c.take()); n != 0 {
			t.Errorf("%d frames after Detach", n)
		}
	}
	close(stop)
	wg.Wait()
	p := a.sent(a.packet(b.mac, spec{n: 10}))
	taken(t, p)
}

// Invariant: wire: After Detach has returned, no call into the port is running.
func TestDetachWaitsForDeliver(t *testing.T) {
	a, b, c := three(t)
	s := a.link.sw
	in, out := make(chan struct{}), make(chan struct{})
	b.slow = func() { in <- struct{}{}; <-out }
	sent, detached := make(chan struct{}), make(chan error)
	go func() {
		defer close(sent)
		a.send(a.arp(b.mac))
	}()
	<-in
	b.slow = nil
	go func() { detached <- s.Detach(b.link) }()
	for len(s.Links()) == 3 { // until Detach has begun
		runtime.Gosched()
	}
	if err := s.Detach(c.link); err != nil {
		t.Error(err)
	}
	select {
	case err := <-detached:
		t.Errorf("Detach returned with a worker in Deliver: %v", err)
	default:
	}
	close(out)
	testkit.OK(t, <-detached)
	<-sent
	if len(b.got) != 1 {
		t.Error("the packet in flight is gone")
	}
}

func TestAttachRefuses(t *testing.T) {
	s := newSwitch(t)
	for _, im := range []Impairment{{Loss: 1.5}, {Loss: -1}, {Reorder: 2}, {Loss: nan()}, {HoldMax: -1, Loss: 1},
		{MaxBytes: -1}} {
		testkit.ErrorIs(t, testkit.Err(s.Attach(&host{}, LinkOptions{Down: im})), ErrBadImpairment, "%+v", im)
	}
	var links []*Link
	for i := range MaxPorts {
		l, err := s.Attach(&host{}, LinkOptions{})
		if err != nil {
			t.Fatal(i, err)
		}
		links = append(links, l)
	}
	if _, err := s.Attach(&host{}, LinkOptions{}); !errors.Is(err, ErrPorts) {
		t.Error(err)
	}
	testkit.OK(t, s.Detach(links[7]))
	if l, err := s.Attach(&host{}, LinkOptions{}); err != nil || l.id != 7 {
		t.Error(err)
	}
	testkit.OK(t, s.Close())
	if _, err := s.Attach(&host{}, LinkOptions{}); !errors.Is(err, ErrDetached) {
		t.Error(err)
	}
}

func nan() float64 { z := 0.0; return z / z }

func TestDropReasonsHaveNames(t *testing.T) {
	seen := map[string]bool{}
	for r := range NumDropReasons + 1 {
		if n := fmt.Sprint(r); n == "" || seen[n] {
			t.Errorf("reason %d: %q", r, n)
		} else {
			seen[n] = true
		}
	}
}
