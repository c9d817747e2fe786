package gve

import (
	"bytes"
	"testing"

	"vnic.dev/vnic/internal/nic/nictest"
	"vnic.dev/vnic/internal/testkit"
	"vnic.dev/vnic/splitter"
)

// receiveFacts takes a frame of one buffer. It returns the frame's completion, and the bytes in its header buffer (if
// it is split) and in its packet buffer.
func (g *suiteGuest) receiveFacts(q int) (c rxCompl, header, payload []byte) {
	g.Helper()
	buf, addr := g.rxd[q].next(&c)
	if c.split {
		header = bytes.Clone(g.At(addr)[:c.headerLen])
	}
	return c, header, bytes.Clone(g.At(buf)[:c.length])
}

// A completion has the packet's type, its hash, and the state of its checksums.
//
// Invariant: nic/gve: A completion marks only verified checksums as good.
func TestCompletionSaysWhatIsKnown(t *testing.T) {
	w := newWorld(t)
	whole := func(s nictest.Spec) nictest.Frame { // makes a frame with a complete checksum
		f := nictest.Make(w.B.mac, w.A.mac, s)
		f.Partial = false
		var h splitter.Headers
		w.A.OK(splitter.Parse(f.Header, uint32(len(f.Header)+len(f.Payload)), &h))
		splitter.FixL4(&h, f.Header, uint32(len(f.Payload)), splitter.Sum(f.Payload, 0))
		return f
	}
	change := func(f nictest.Frame, off int) nictest.Frame {
		f.Header[off] ^= 1
		return f
	}
	noUDP := whole(nictest.Spec{UDP: true, Payload: 99})
	noUDP.Header[40], noUDP.Header[41] = 0, 0
	icmp := nictest.Make(w.B.mac, w.A.mac, nictest.Spec{Payload: 60})
	icmp.Header[23], icmp.Partial = 1, false
	fragment := nictest.Make(w.B.mac, w.A.mac, nictest.Spec{Payload: 60})
	fragment.Header[20], fragment.Partial = 0x20, false
	arp := nictest.Frame{Header: append(append(bytes.Clone(w.B.mac[:]), w.A.mac[:]...),
		append([]byte{8, 6}, make([]byte, 28)...)...)}
	for name, x := range map[string]struct {
		f                     nictest.Frame
		ptype                 uint16
		checked, l4Bad, ipBad bool
		hashed                int // 4: the 4-tuple; 2: the addresses; 0: nothing, and the hash is 0
	}{
		"partial": {nictest.Make(w.B.mac, w.A.mac, nictest.Spec{Payload: 999}), 0x22, true, false, false, 4},
		"partial UDP6": {nictest.Make(w.B.mac, w.A.mac, nictest.Spec{V6: true, UDP: true, Payload: 7}), 0x33, true, false,
			false, 4},
		"good":            {whole(nictest.Spec{Payload: 1001, V6: true, Opts: 12}), 0x32, true, false, false, 4},
		"good, no bytes":  {whole(nictest.Spec{}), 0x22, true, false, false, 4},
		"good UDP":        {whole(nictest.Spec{UDP: true, Payload: 300, VLANs: 1}), 0x23, true, false, false, 4},
		"bad TCP":         {change(whole(nictest.Spec{Payload: 500}), 51), 0x22, true, true, false, 4},
		"bad IP":          {change(whole(nictest.Spec{Payload: 500}), 24), 0x22, true, false, true, 4},
		"UDP without sum": {noUDP, 0x23, false, false, false, 4},
		"ICMP":            {icmp, 0x24, false, false, false, 2},
		"fragment":        {fragment, 0x21, false, false, false, 2},
		"ARP":             {arp, 0x11, false, false, false, 0},
	} {
		t.Run(name, func(t *testing.T) {
			bad := w.B.dev.rx[0].count.badCsum.get()
			sent := x.f
			sent.Header = bytes.Clone(x.f.Header)
			w.B.Post(0, 1)
			w.A.Send(0, sent)
			c, _, got := w.B.receiveFacts(0)
			w.B.startRx(0, false) // drops the posted buffers
			if c.ptype != x.ptype || c.checked != x.checked || c.l4Bad != x.l4Bad || c.ipBad != x.ipBad || !c.eop || c.split ||
				c.overflow || c.bad {
				t.Errorf("%+v", c)
			}
			if n := w.B.dev.rx[0].count.badCsum.get() - bad; (n == 1) != (x.l4Bad || x.ipBad) {
				t.Errorf("%d bad checksums counted", n)
			}
			var h splitter.Headers
			w.A.OK(splitter.Parse(got, uint32(len(got)), &h))
			key := splitter.DefaultKey
			flow := h.Flow
			if x.hashed == 2 {
				flow.SrcPort, flow.DstPort = 0, 0
			}
			want := splitter.Toeplitz(&key, &flow)
			if x.hashed == 0 {
				want = 0
			}
			testkit.Equal(t, "hash", c.hash, want)
			if x.checked && !x.l4Bad && splitter.VerifyL4(&h, got[:h.HdrLen], uint32(len(got))-uint32(h.HdrLen),
				splitter.Sum(got[h.HdrLen:], 0)) != splitter.CsumGood {
				t.Error("vouched for, and wrong")
			}
		})
	}
}

// A frame that cannot be split comes with the overflow mark, and without bytes in the header buffer.
//
// Invariant: nic/gve: Split marks are as the kernel needs them.
func TestSplitMarks(t *testing.T) {
	w := newWorld(t)
	w.B.startRx(0, true)
	for name, x := range map[string]struct {
		s              nictest.Spec
		header, length int
	}{
		"TCP":        {nictest.Spec{Payload: 1000}, 54, 1000},
		"longest":    {nictest.Spec{V6: true, Ext: 144, Opts: 36, Payload: 1}, 254, 1},
		"ACK":        {nictest.Spec{}, 54, 0},
		"small UDP":  {nictest.Spec{UDP: true, Payload: rawHeader - 42}, rawHeader, 0},
		"UDP":        {nictest.Spec{UDP: true, Payload: rawHeader - 41}, 0, rawHeader + 1},
		"long chain": {nictest.Spec{V6: true, Ext: 144, Opts: 40, Payload: 100}, 0, 358},
	} {
		t.Run(name, func(t *testing.T) {
			f := nictest.Make(w.B.mac, w.A.mac, x.s)
			w.B.Post(0, 1)
			w.A.Send(0, f)
			c, header, payload := w.B.receiveFacts(0)
			if int(c.headerLen) != x.header || int(c.length) != x.length || c.split != (x.header > 0) ||
				c.overflow != (x.header == 0) || !c.checked {
				t.Errorf("%+v", c)
			}
			testkit.Equal(t, "bytes", len(header)+len(payload), len(f.Header)+len(f.Payload))
		})
	}
}

// GSO packets of all kinds become valid segments for a receiver that does not accept GSO packets.
func TestSuperPacketsAreCut(t *testing.T) {
	w := newWorldWith(t, rawOptions{pairs: 1, mtu: 9000, p2p: true})
	for name, x := range map[string]struct {
		s   nictest.Spec
		gso splitter.GSOType
	}{
		"TCPv4": {nictest.Spec{Payload: 9000, Opts: 12}, splitter.GSOTCPv4},
		"TCPv6": {nictest.Spec{V6: true, Payload: 9001, VLANs: 1}, splitter.GSOTCPv6},
		"UDPv4": {nictest.Spec{UDP: true, Payload: 5000}, splitter.GSOUDPL4},
		"UDPv6": {nictest.Spec{UDP: true, V6: true, Payload: 1449}, splitter.GSOUDPL4},
		"one":   {nictest.Spec{Payload: 700}, splitter.GSOTCPv4},
		"exact": {nictest.Spec{Payload: 2800}, splitter.GSOTCPv4},
	} {
		t.Run(name, func(t *testing.T) {
			f := nictest.Make(w.Bad.mac, w.A.mac, x.s)
			f.GSO, f.MSS = x.gso, 1400
			w.Bad.Post(0, 8)
			w.A.Send(0, f)
			nictest.Segments(t, w.Bad, 0, &f, func(got *nictest.Frame, h *splitter.Headers, off int) {
				if !got.Good || !splitter.VerifyIPv4(h, got.Bytes()) {
					t.Errorf("segment at %d: good %v: %x", off, got.Good, got.Bytes()[:h.HdrLen])
				}
			})
			w.Bad.startRx(0, false)
		})
	}
}
