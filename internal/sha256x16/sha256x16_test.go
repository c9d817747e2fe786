package sha256x16

import (
	"crypto/sha256"
	"math/rand/v2"
	"testing"
)

func TestSumsAreSHA256(t *testing.T) {
	if !Available {
		t.Log("no AVX-512 here: crypto/sha256 is used instead")
		return
	}
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	var s State
	var out [Lanes][32]byte
	for range 300 {
		size := 64 * r.IntN(40)
		stride := size + r.IntN(100)
		b := make([]byte, 15*stride+size+1)[1:]
		for i := range b {
			b[i] = byte(r.Uint32())
		}
		s.Reset()
		for pos := 0; pos < size; {
			n := 64 * (1 + r.IntN((size-pos)/64))
			s.Write(b[pos:], stride, n)
			pos += n
		}
		s.Sums(out[:])
		for i := range out {
			if want := sha256.Sum256(b[i*stride:][:size]); out[i] != want {
				t.Fatalf("lane %d, %d bytes: %x, not %x", i, size, out[i], want)
			}
		}
	}
}

func TestWriteStaysInItsSlice(t *testing.T) {
	for _, c := range []struct{ size, stride, n int }{
		{15*64 + 63, 64, 64}, {0, 0, 64}, {64, 1, 64}, {1 << 20, 1 << 20, 64}, {1 << 20, 64, 63}, {1 << 20, -1, 64},
		{1 << 20, 64, -64}, {1 << 20, 1<<63 - 1, 64}, {128, 64, 1 << 62},
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%+v is taken", c)
				}
			}()
			var s State
			s.Reset()
			s.Write(make([]byte, c.size), c.stride, c.n)
		}()
	}
}

func BenchmarkWrite(b *testing.B) {
	m := make([]byte, 16<<20)
	b.Run("x16", func(b *testing.B) {
		if !Available {
			b.Skip("no AVX-512")
		}
		var s State
		s.Reset()
		b.SetBytes(int64(len(m)))
		for b.Loop() {
			s.Write(m, 1<<20, 1<<20)
		}
	})
	b.Run("crypto", func(b *testing.B) {
		h := sha256.New()
		b.SetBytes(int64(len(m)))
		for b.Loop() {
			h.Write(m)
		}
	})
}
