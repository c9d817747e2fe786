package splitter

import (
	"math/rand/v2"
	"net/netip"
	"testing"
	"vnic.dev/vnic/internal/testkit"
)

// The cases are the RSS verification suite that Microsoft publishes ("Verifying the RSS Hash Calculation").
//
// Invariant: splitter: RSS hashes are the published ones.
func TestToeplitzGivesPublishedHashes(t *testing.T) {
	r := testkit.Must(NewRSS(DefaultKey, []uint16{0, 1, 2, 3}))(t)
	for _, c := range []struct {
		dst, src  string
		ip, ports uint32
	}{
		{"161.142.100.80:1766", "66.9.149.187:2794", 0x323e8fc2, 0x51ccc178},
		{"65.69.140.83:4739", "199.92.111.2:14230", 0xd718262a, 0xc626b0ea},
		{"12.22.207.184:38024", "24.19.198.95:12898", 0xd2d0a5de, 0x5c2b394a},
		{"209.142.163.6:2217", "38.27.205.30:48228", 0x82989176, 0xafc7327f},
		{"202.188.127.2:1303", "153.39.163.191:44251", 0x5d1809c5, 0x10e828a2},
		{"[3ffe:2501:200:3::1]:1766", "[3ffe:2501:200:1fff::7]:2794", 0x2cc18cd5, 0x40207d3d},
		{"[ff02::1]:4739", "[3ffe:501:8::260:97ff:fe40:efab]:14230", 0x0f0c461c, 0xdde51bbf},
		{"[fe80::200:f8ff:fe21:67cf]:38024", "[3ffe:1900:4545:3:200:f8ff:fe21:67cf]:44251", 0x4b61e985, 0x02d1feef},
	} {
		f := flow(c.src, c.dst)
		bare := f
		bare.SrcPort, bare.DstPort = 0, 0
		for name, hash := range map[string]func(*Flow) uint32{
			"bits":    func(f *Flow) uint32 { return Toeplitz(&DefaultKey, f) },
			"nibbles": r.Hash,
		} {
			if got := hash(&f); got != c.ports {
				t.Errorf("%s %s -> %s: %#x, want %#x", name, c.src, c.dst, got, c.ports)
			}
			if got := hash(&bare); got != c.ip {
				t.Errorf("%s %s -> %s without ports: %#x, want %#x", name, c.src, c.dst, got, c.ip)
			}
		}
		if q := r.Queue(c.ports); uint32(q) != c.ports%4 {
			t.Errorf("hash %#x to queue %d", c.ports, q)
		}
	}
}

func flow(src, dst string) Flow {
	s, d := netip.MustParseAddrPort(src), netip.MustParseAddrPort(dst)
	f := Flow{SrcPort: s.Port(), DstPort: d.Port(), Proto: ProtoTCP, IPv6: s.Addr().Is6()}
	copy(f.Src[:], s.Addr().AsSlice())
	copy(f.Dst[:], d.Addr().AsSlice())
	return f
}

func TestHashEqualsReferenceForAnyKey(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for range 200 {
		var key [KeyLen]byte
		for i := range key {
			key[i] = byte(rng.Uint32())
		}
		r := testkit.Must(NewRSS(key, []uint16{0}))(t)
		f := Flow{IPv6: rng.IntN(2) == 0, SrcPort: uint16(rng.Uint32()), DstPort: uint16(rng.Uint32())}
		n := 4
		if f.IPv6 {
			n = 16
		}
		for i := range n {
			f.Src[i], f.Dst[i] = byte(rng.Uint32()), byte(rng.Uint32())
		}
		if a, b := Toeplitz(&key, &f), r.Hash(&f); a != b {
			t.Fatalf("%+v: %#x and %#x", f, a, b)
		}
	}
}

func TestRSSRefusesOddTables(t *testing.T) {
	for _, n := range []int{0, 3, 1<<15 + 1, 1 << 16} {
		if _, err := NewRSS(DefaultKey, make([]uint16, n)); err == nil {
			t.Errorf("table of %d taken", n)
		}
	}
}

func BenchmarkHash(b *testing.B) {
	r := testkit.Must(NewRSS(DefaultKey, make([]uint16, 128)))(b)
	for name, f := range map[string]Flow{"v4": flow("1.2.3.4:5", "6.7.8.9:10"),
		"v6": flow("[fd00::1]:5", "[fd00::2]:10")} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				r.Hash(&f)
			}
		})
		b.Run(name+"/bits", func(b *testing.B) {
			for b.Loop() {
				Toeplitz(&r.Key, &f)
			}
		})
	}
}
