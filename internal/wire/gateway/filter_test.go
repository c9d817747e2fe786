package gateway

import (
	"context"
	"encoding/binary"
	"net"
	"net/netip"
	"testing"

	"vnic.dev/vnic/dma"
	"vnic.dev/vnic/internal/testkit"
	"vnic.dev/vnic/internal/wire"
	"vnic.dev/vnic/splitter"
)

func (r *raw) sendPartial(frame []byte, start, offset uint16) wire.Verdict {
	r.t.Helper()
	p := describe(r.t, r, frame)
	p.Meta.Csum, p.Meta.CsumStart, p.Meta.CsumOffset = splitter.CsumPartial, start, offset
	r.link.Deliver(r.w, []*wire.Packet{p})
	return p.Verdict
}

// bypass is a frame with a partial checksum whose completion would change its destination to a refused one.
type bypass struct {
	frame         []byte
	start, offset uint16
}

func (b *bypass) check(t *testing.T) {
	t.Helper()
	f := append([]byte(nil), b.frame...)
	sum := ^splitter.Sum(f[b.start:], 0)
	binary.BigEndian.PutUint16(f[b.start+b.offset:], sum)
	var h splitter.Headers
	testkit.OK(t, splitter.Parse(f, uint32(len(f)), &h))
	if dst := netip.AddrFrom4([4]byte(f[30:34])); dst != metadata.Addr() || !splitter.VerifyIPv4(&h, f[:h.HdrLen]) ||
		splitter.VerifyL4(&h, f[:h.HdrLen], uint32(len(f))-uint32(h.HdrLen),
			splitter.Sum(f[h.HdrLen:], 0)) == splitter.CsumBad {
		t.Fatalf("completed, the frame is none to %v: %x", metadata, f)
	}
}

var (
	metadata = netip.MustParseAddrPort("169.254.169.254:80")
	harmless = []byte{11, 9} // replaces the first half of the refused address
)

func notDialled(t *testing.T) (*rig, chan string) {
	asked := make(chan string, 10)
	w := newRig(t, nil, func(g *Gateway) {
		g.dial = func(_ context.Context, network string, p permit) (net.Conn, error) {
			asked <- network + " " + p.to.String()
			return nil, net.ErrClosed
		}
		g.openFlow = func(_ context.Context, _ Flow, p permit) (*net.UDPConn, error) {
			asked <- "udp " + p.to.String()
			return nil, net.ErrClosed
		}
	})
	return w, asked
}

// Invariant: wire: Completing a partial checksum changes no byte by which a frame was judged, but
// for the checksum field of TCP or UDP.
func TestFilterIsNotBypassedByChecksums(t *testing.T) {
	for name, make := range map[string]func(r *raw) bypass{
		"UDP": func(r *raw) bypass {
			f := r.udp4(gatewayMAC, netip.AddrPortFrom(addr4Of(1), 1000), metadata, []byte{1, 2, 3, 4, 0, 0})
			copy(f[30:], harmless)
			tune(f, 30, 0xa9fe, len(f)-2) // the checksum from 30 on is the first half of the refused address
			return bypass{f, 30, 0}
		},
		"TCP": func(r *raw) bypass {
			// From the IPv4 header's checksum on, the sum depends only on that checksum, because TCP's checksum
			// cancels the rest. The identification then makes that checksum right for the changed destination.
			f := r.syn(netip.AddrPortFrom(addr4Of(1), 1000), metadata)
			copy(f[30:], harmless)
			tune(f, 24, 0xa9fe, 24)
			final := append([]byte(nil), f[14:34]...)
			copy(final[16:], []byte{169, 254})
			binary.BigEndian.PutUint16(f[18:], ^splitter.Sum(final, 0))
			return bypass{f, 24, 6}
		},
	} {
		t.Run(name, func(t *testing.T) {
			w, asked := notDialled(t)
			g, r := w.g, w.raw(1)
			r.meet()
			b := make(r)
			b.check(t)
			taken := g.Stats().Received
			testkit.Equal(t, "verdict", r.sendPartial(b.frame, b.start, b.offset), wire.Drop(wire.DropBadCsum))
			// A dial for an earlier frame would have begun before this one.
			good := netip.MustParseAddrPort("192.0.2.1:80")
			r.mustSend(r.syn(netip.AddrPortFrom(addr4Of(1), 2000), good))
			testkit.Equal(t, "dialled", <-asked, "tcp "+good.String())
			testkit.Equal(t, "frames that netstack got", g.Stats().Received-taken, 1)
		})
	}
}

// tune sets the two bytes at free so that the checksum from start on is want.
func tune(f []byte, start int, want uint16, free int) {
	binary.BigEndian.PutUint16(f[free:], 0)
	binary.BigEndian.PutUint16(f[free:], splitter.Add(^want, ^splitter.Sum(f[start:], 0)))
}

func TestFilterReadsNoFurther(t *testing.T) {
	f := filter{prefix4: prefix4, prefix6: prefix6, local6: netip.MustParseAddr("fe80::fe"), nat: true}
	r := newRaw(t, newSwitch(t), 1)
	for name, b := range map[string][]byte{
		"ARP":                   r.arp(1, addr4Of(1), prefix4.Addr(), wire.MAC{}),
		"neighbor solicitation": r.solicit(prefix6.Addr()),
		"router solicitation":   r.solicitRouter(addr6Of(1)),
		"echo":                  r.icmp6(gatewayMAC, addr6Of(1), prefix6.Addr(), make([]byte, 64)),
	} {
		var h splitter.Headers
		testkit.OK(t, splitter.Parse(b, uint32(len(b)), &h))
		if !f.admits(&h, b) || !f.admits(&h, b[:h.JudgedLen()]) {
			t.Errorf("%s: the filter needs more than %d bytes", name, h.JudgedLen())
		}
	}
}

func TestFilterOfWhatWasNotRead(t *testing.T) {
	f := filter{prefix4: prefix4, prefix6: prefix6, local6: netip.MustParseAddr("fe80::fe"), nat: true}
	r := newRaw(t, newSwitch(t), 1)
	for to, want := range map[netip.Addr]bool{netip.MustParseAddr("192.0.2.1"): true, addr4Of(2): false} {
		b := r.udp4(gatewayMAC, netip.AddrPortFrom(addr4Of(1), 1), netip.AddrPortFrom(to, 1), make([]byte, 8))
		b[14+9] = protoICMP
		var h splitter.Headers
		testkit.OK(t, splitter.Parse(b, uint32(len(b)), &h))
		splitter.FixIPv4(&h, b)
		testkit.Equal(t, "a ping that leads nowhere", f.pingBeyond(&h, b), want)
		for n := range h.L4Off {
			if f.admits(&h, b[:n]) || f.pingBeyond(&h, b[:n]) {
				t.Errorf("%v: passes by %d bytes", to, n)
			}
		}
	}
}

// Invariant: wire: Completing a partial checksum changes no byte by which a frame was judged, but
// for the checksum field of TCP or UDP.
func TestNetstackGetsWhatWasJudged(t *testing.T) {
	p := &port{mac: gatewayMAC, filter: filter{prefix4: prefix4, prefix6: prefix6}, count: new(counters), in: newInbox()}
	r := newRaw(t, newSwitch(t), 1)
	for name, frame := range map[string][]byte{
		"ARP":                   r.arp(1, addr4Of(1), prefix4.Addr(), wire.MAC{}),
		"neighbor solicitation": r.solicit(prefix6.Addr()),
	} {
		mem := append([]byte(nil), frame...)
		region := dma.NewBuffer(mem, dma.Wire)
		pkt := &wire.Packet{}
		h := &pkt.Meta.Headers
		testkit.OK(t, splitter.Parse(frame, uint32(len(frame)), h))
		pkt.Header = append([]byte(nil), frame[:h.HdrLen]...)
		pkt.PayloadLen = uint32(len(frame)) - uint32(h.HdrLen)
		pkt.Payload = []dma.Segment{region.Segment(uint64(h.HdrLen), pkt.PayloadLen)}
		pkt.Prepare()
		var buf [splitter.MaxHeader]byte
		judged, ok := p.wants(r.w, pkt, &buf)
		if !ok {
			t.Fatalf("%s is not wanted", name)
		}
		clear(mem[h.HdrLen:])
		a, reason := receive(r.w, pkt, judged, int(pkt.Len())-int(h.L3Off))
		if reason != wire.DropNone {
			t.Fatal(name, reason)
		}
		if got := a.view.AsSlice()[:h.JudgedLen()-uint32(h.L3Off)]; string(got) != string(frame[h.L3Off:h.JudgedLen()]) {
			t.Errorf("%s: netstack gets %x", name, got)
		}
		a.view.Release()
	}
}
