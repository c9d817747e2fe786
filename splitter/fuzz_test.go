package splitter

import (
	"bytes"
	"errors"
	"slices"
	"testing"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"vnic.dev/vnic/internal/testkit"
)

// FuzzParse checks the guarantees of Parse, and compares addresses and other fields of IP frames with what gVisor's
// parser finds.
func FuzzParse(f *testing.F) {
	for _, b := range [][]byte{
		built(tcp4(20)), built(tcp6(20)), built(udp(tcp4(20))), built(udp(tcp6(20))), tagged(tcp4(0), 0x88a8, 0x8100),
		extended(tcp6(3), extHopByHop, extDestOpts), extended(tcp6(3), extFragment), fragment(tcp4(9), 0x2000), ahOf(tcp6(1)),
		other(tcp4(0), ProtoSCTP, 12), other(tcp6(0), ProtoESP, 40), other(tcp4(0), ProtoAH, 30), other(tcp6(0), ProtoESP, 3),
	} {
		f.Add(b, uint32(len(b)), uint16(len(b)))
		f.Add(b, uint32(len(b)), uint16(40))
	}
	f.Fuzz(func(t *testing.T, b []byte, frameLen uint32, n uint16) {
		b = slices.Clip(bytes.Clone(b[:min(len(b), int(n))])) // to read or slice beyond it panics
		whole := bytes.Clone(b)
		var h Headers
		err := Parse(b, frameLen, &h)
		if !bytes.Equal(b, whole) {
			t.Fatal("the frame was written to")
		}
		if err != nil {
			if !errors.Is(err, ErrShort) || h.Class != Malformed || uint32(len(b)) >= frameLen || len(b) >= MaxHeader {
				t.Fatalf("%v of %d of %d bytes: %+v", err, len(b), frameLen, h)
			}
			return
		}
		if int(h.HdrLen) > len(b) || uint32(h.HdrLen) > h.FrameLen || h.FrameLen > frameLen || h.HdrLen > MaxHeader {
			t.Fatalf("%d of %d bytes: %+v", len(b), frameLen, h)
		}
		if h.Class == Malformed {
			if h.HdrLen != 0 || h.L4Off != 0 || h.Flow != (Flow{}) || h.FrameLen != frameLen {
				t.Fatalf("%+v", h)
			}
			return
		}
		if h.L3Off < EthLen || h.Class != NotIP && h.L4Off <= h.L3Off || h.L4Off > h.HdrLen {
			t.Fatalf("%+v", h)
		}
		var again Headers
		judged := b[:min(len(b), int(h.JudgedLen()))]
		if err := Parse(judged, frameLen, &again); err != nil || again != h {
			t.Fatalf("from what is judged alone: %v\n%+v\n%+v", err, h, again)
		}
		compare(t, b, &h)
		useHeaders(t, judged, &h)
	})
}

func compare(t *testing.T, b []byte, h *Headers) {
	var src, dst tcpip.Address
	switch {
	case h.Class == NotIP:
		return
	case h.IPv6:
		ip := header.IPv6(b[h.L3Off:])
		if int(ip.PayloadLength())+int(h.L3Off)+40 != int(h.FrameLen) {
			t.Fatalf("payload length %d: %+v", ip.PayloadLength(), h)
		}
		src, dst = ip.SourceAddress(), ip.DestinationAddress()
	default:
		ip := header.IPv4(b[h.L3Off:])
		if !ip.IsValid(int(h.FrameLen)-int(h.L3Off)) || int(h.L3Off)+int(ip.HeaderLength()) != int(h.L4Off) ||
			int(ip.TotalLength())+int(h.L3Off) != int(h.FrameLen) || ip.Protocol() != h.Proto {
			t.Fatalf("gVisor: %+v", h)
		}
		if (ip.FragmentOffset() != 0 || ip.More()) != (h.Class == Fragment) {
			t.Fatalf("fragment: %+v", h)
		}
		src, dst = ip.SourceAddress(), ip.DestinationAddress()
	}
	n := src.Len()
	if !bytes.Equal(src.AsSlice(), h.Flow.Src[:n]) || !bytes.Equal(dst.AsSlice(), h.Flow.Dst[:n]) {
		t.Fatalf("addresses: %+v", h)
	}
	switch h.Class {
	case TCP:
		tcp := header.TCP(b[h.L4Off:])
		if int(tcp.DataOffset())+int(h.L4Off) != int(h.HdrLen) || tcp.SourcePort() != h.Flow.SrcPort ||
			tcp.DestinationPort() != h.Flow.DstPort || uint8(tcp.Flags()) != h.TCPFlags ||
			tcp.SequenceNumber() != h.Seq || tcp.AckNumber() != h.Ack {
			t.Fatalf("gVisor: %+v", h)
		}
	case UDP:
		u := header.UDP(b[h.L4Off:])
		if u.SourcePort() != h.Flow.SrcPort || u.DestinationPort() != h.Flow.DstPort {
			t.Fatalf("gVisor: %+v", h)
		}
	}
}

// useHeaders calls the checksum functions and a Segmenter: none may panic, the checksum of FixIPv4 must verify, and
// the checksum of FixL4 must not be CsumBad.
func useHeaders(t *testing.T, b []byte, h *Headers) {
	hdr := bytes.Clone(b)
	FixIPv4(h, hdr)
	if !VerifyIPv4(h, hdr) {
		t.Fatalf("IPv4 checksum: %+v", h)
	}
	n := h.FrameLen - uint32(h.HdrLen)
	FixL4(h, hdr, n, 0x1234)
	if VerifyL4(h, hdr, n, 0x1234) == CsumBad {
		t.Fatalf("checksum: %+v", h)
	}
	for gso := range GSOUDPL4 + 1 {
		m := Meta{Headers: *h, GSOType: gso, GSOSize: 1000, Csum: CsumGood}
		var s Segmenter
		if s.Init(hdr, &m, n) != nil {
			continue
		}
		dst := make([]byte, len(hdr))
		for i := range s.Segments() {
			off := i * s.MSS()
			var pm Meta
			testkit.OK(t, s.Piece(dst, &pm, off, min(s.MSS(), n-off)))
			var got Headers
			if err := Parse(dst, pm.Headers.FrameLen, &got); err != nil || got != pm.Headers {
				t.Fatalf("segment %d: %v\n%+v\n%+v", i, err, got, pm.Headers)
			}
		}
	}
}
