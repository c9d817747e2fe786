package dma

import (
	"math/rand/v2"
	"testing"
)

// naiveSum returns the sum of RFC 1071, not inverted, computed byte by byte.
func naiveSum(b []byte) uint16 {
	var sum uint32
	for i, v := range b {
		if i%2 == 0 {
			sum += uint32(v) << 8
		} else {
			sum += uint32(v)
		}
		sum = sum>>16 + sum&0xffff
	}
	return uint16(sum)
}

func TestChecksumOfAllLengths(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	fill := map[string]func() byte{
		"zero": func() byte { return 0 }, "ones": func() byte { return 0xff },
		"random": func() byte { return byte(rnd.Uint32()) },
	}
	for name, f := range fill {
		t.Run(name, func(t *testing.T) {
			buf := make([]byte, 400)
			for i := range buf {
				buf[i] = f()
			}
			for off := range 9 {
				for n := 0; off+n <= len(buf); n++ {
					b := buf[off : off+n]
					if got, want := Fold(Checksum(b, 0)), naiveSum(b); got != want {
						t.Fatalf("[%d, +%d): %#04x, want %#04x", off, n, got, want)
					}
					cut := n / 2 &^ 1
					if got, want := Fold(Checksum(b[cut:], Checksum(b[:cut], 0))), naiveSum(b); got != want {
						t.Fatalf("[%d, +%d) in two: %#04x, want %#04x", off, n, got, want)
					}
					dst := make([]byte, n+1)
					if got, want := fold64(copySum64(dst, b, 0)), naiveSum(b); got != want || string(dst[:n]) != string(b) ||
						dst[n] != 0 {
						t.Fatalf("[%d, +%d) copied: %#04x, want %#04x", off, n, got, want)
					}
				}
			}
		})
	}
}

func TestChecksumInitialCarries(t *testing.T) {
	b := []byte{0xff, 0xfe}
	if got, want := Fold(Checksum(b, ^uint32(0))), Fold(uint32(0xfffe)+uint32(Fold(^uint32(0)))); got != want {
		t.Fatalf("%#x, want %#x", got, want)
	}
	if Fold(0) != 0 || Fold(0xffff) != 0xffff || Fold(0x10000) != 1 || Fold(^uint32(0)) != 0xffff {
		t.Fatal("Fold")
	}
}

func FuzzChecksum(f *testing.F) {
	f.Add([]byte("\x45\x00\x00\x73"), uint8(1))
	f.Fuzz(func(t *testing.T, b []byte, cut uint8) {
		want := naiveSum(b)
		k := min(int(cut), len(b))
		r := NewBuffer(b, Wire)
		c := NewCopier()
		segs := []Segment{r.Segment(0, uint32(k)), r.Segment(uint64(k), uint32(len(b)-k))}
		if got, err := c.Sum(segs); got != want || err != nil {
			t.Fatalf("Sum cut at %d: %#x, want %#x, %v", k, got, want, err)
		}
		dst := NewBuffer(make([]byte, len(b)), Host)
		if n, got, err := c.CopySum([]Segment{dst.Segment(0, uint32(len(b)))}, segs); got != want || err != nil ||
			n != uint64(len(b)) {
			t.Fatalf("CopySum cut at %d: %#x, want %#x, %d, %v", k, got, want, n, err)
		}
		if string(dst.mem) != string(b) {
			t.Fatal("copy differs")
		}
	})
}
