package splitter

import (
	"encoding/binary"
	"math/rand/v2"
	"testing"
)

func TestSumEqualsRFC1071(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	for n := range 200 {
		b := make([]byte, n)
		for i := range b {
			b[i] = byte(rng.Uint32())
			if n%3 == 0 {
				b[i] = 0xff
			}
		}
		if got, want := Sum(b, 0), naive(b); got != want {
			t.Fatalf("%d bytes: %#x, want %#x", n, got, want)
		}
		for cut := range n + 1 { // also at odd offsets
			if got, want := Add(Sum(b[:cut], 0), SumAt(Sum(b[cut:], 0), uint32(cut))), naive(b); got != want {
				t.Fatalf("%d bytes cut at %d: %#x, want %#x", n, cut, got, want)
			}
		}
	}
}

func TestChecksumsOfFrames(t *testing.T) {
	for name, f := range map[string]frame{
		"tcp4": tcp4(101), "tcp6": tcp6(100), "udp4": udp(tcp4(33)), "udp6": udp(tcp6(34)), "empty": tcp4(0),
		"options": {src: "1.1.1.1", dst: "2.2.2.2", ipOpts: 12, proto: 6, payload: pattern(7), tags: []uint16{0x8100}},
		"ext":     {src: "::1", dst: "::2", ext: []byte{0, 60}, proto: 17, payload: pattern(7)},
	} {
		t.Run(name, func(t *testing.T) {
			b := f.build()
			h := parsed(t, b)
			hdr, payload := append([]byte(nil), b[:h.HdrLen]...), b[h.HdrLen:]
			sum, n := naive(payload), uint32(len(payload))
			if !VerifyIPv4(&h, hdr) || VerifyL4(&h, hdr, n, sum) != CsumGood {
				t.Fatal("a good frame does not verify")
			}
			if VerifyL4(&h, hdr, n, sum^0x0100) != CsumBad {
				t.Error("a bad payload verifies")
			}
			start, off, _ := CsumPlace(&h)
			want := binary.BigEndian.Uint16(hdr[start+off:])
			FixPartial(&h, hdr, n)
			if got := naive(f.pseudo(len(b) - int(h.L4Off))); binary.BigEndian.Uint16(hdr[start+off:]) != got {
				t.Errorf("partial %#x, want %#x", hdr[start+off:][:2], got)
			}
			m := Meta{Headers: h, Csum: CsumPartial, CsumStart: start, CsumOffset: off}
			m.Complete(hdr, sum)
			if got := binary.BigEndian.Uint16(hdr[start+off:]); got != want || m.Csum != CsumGood {
				t.Errorf("completed to %#x, want %#x, state %v", got, want, m.Csum)
			}
			if !h.IPv6 {
				for n := range h.L4Off {
					if VerifyIPv4(&h, hdr[:n]) {
						t.Errorf("%d bytes of a header verify", n)
					}
				}
				hdr[h.L3Off+8]-- // time to live
				if VerifyIPv4(&h, hdr) {
					t.Error("a bad IPv4 header verifies")
				}
				FixIPv4(&h, hdr)
				if !VerifyIPv4(&h, hdr) {
					t.Error("a repaired IPv4 header does not verify")
				}
			}
		})
	}
}

func TestVerifyL4WithNothingToCheck(t *testing.T) {
	f := udp(tcp4(8))
	b := f.build()
	b[40], b[41] = 0, 0
	short := f.build()
	short[39]--
	icmp := frame{src: "1.1.1.1", dst: "2.2.2.2", proto: 1, payload: pattern(8)}
	for name, b := range map[string][]byte{"udp without": b, "udp shorter than its datagram": short,
		"icmp": icmp.build()} {
		h := parsed(t, b)
		if got := VerifyL4(&h, b[:h.HdrLen], uint32(len(b))-uint32(h.HdrLen), naive(b[h.HdrLen:])); got != CsumNone {
			t.Errorf("%s: %v", name, got)
		}
	}
}

func TestUDPChecksumIsNeverZero(t *testing.T) {
	f := udp(tcp4(2))
	for v := range 1 << 16 {
		f.payload = []byte{byte(v >> 8), byte(v)}
		b := f.build()
		if binary.BigEndian.Uint16(b[40:]) != 0xffff {
			continue
		}
		h := parsed(t, b)
		FixL4(&h, b[:h.HdrLen], 2, naive(f.payload))
		if got := binary.BigEndian.Uint16(b[40:]); got != 0xffff {
			t.Fatalf("checksum %#x", got)
		}
		if VerifyL4(&h, b[:h.HdrLen], 2, naive(f.payload)) != CsumGood {
			t.Fatal("it does not verify")
		}
		return
	}
	t.Fatal("no such payload")
}
