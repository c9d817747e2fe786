package gpumem

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"vnic.dev/vnic/internal/testkit"
)

func TestMixIsInvertible(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		z := rapid.Uint64().Draw(t, "z")
		if unmix64(mix64(z)) != z || mix64(unmix64(z)) != z {
			t.Fatalf("%#x", z)
		}
	})
	var one uint64 = step
	testkit.Equal(t, "step * stepInv", one*stepInv, 1)
}

// The pattern must not change: later versions must find payload that was recorded earlier.
func TestPatternBytes(t *testing.T) {
	b := make([]byte, 24)
	FillPattern(b, 1234567, 0)
	// These are the outputs of splitmix64 for seed 1234567.
	for i, want := range []uint64{6457827717110365317, 3203168211198807973, 9817491932198370423} {
		if got := le.Uint64(b[8*i:]); got != want {
			t.Errorf("word %d is %d, not %d", i, got, want)
		}
	}
}

func TestFillAtAnyPlace(t *testing.T) {
	defer func(was bool) { vector = was }(vector)
	for _, vector = range slices.Compact([]bool{vector, false}) {
		t.Run(fmt.Sprintf("vector=%t", vector), testFillAtAnyPlace)
	}
}

func testFillAtAnyPlace(t *testing.T) {
	const seed = 42
	all := make([]byte, 512)
	for i := range all {
		all[i] = byte(word(seed, uint64(i/8)) >> (8 * (i % 8)))
	}
	for off := range 40 {
		for n := range 130 {
			b := make([]byte, n)
			FillAt(b, seed, uint64(off))
			if !bytes.Equal(b, all[off:off+n]) {
				t.Fatalf("%d bytes at %d", n, off)
			}
			if m := MatchAt(b, seed, uint64(off)); m != n {
				t.Fatalf("%d of %d bytes at %d match", m, n, off)
			}
			if m := matchBefore(b, seed, uint64(off+n)); m != n {
				t.Fatalf("%d of %d bytes before %d match", m, n, off+n)
			}
			for i := range n {
				b[i] ^= 1
				if m := MatchAt(b, seed, uint64(off)); m != i {
					t.Fatalf("%d bytes at %d, wrong at %d: %d match", n, off, i, m)
				}
				if m := matchBefore(b, seed, uint64(off+n)); m != n-i-1 {
					t.Fatalf("%d bytes before %d, wrong at %d: %d match", n, off+n, i, m)
				}
				b[i] ^= 1
			}
		}
	}
	FillAt(all[:64], seed, 1<<63+5)
	testkit.Equal(t, "bytes far out", MatchAt(all[:64], seed, 1<<63+5), 64)
}

func BenchmarkFill(b *testing.B) {
	buf := make([]byte, 1<<20)
	b.SetBytes(int64(len(buf)))
	for b.Loop() {
		FillAt(buf, 1, 3)
	}
}

func BenchmarkMatch(b *testing.B) {
	buf := make([]byte, 1<<20)
	FillAt(buf, 1, 0)
	b.SetBytes(int64(len(buf)))
	for b.Loop() {
		if n := MatchAt(buf, 1, 0); n != len(buf) {
			b.Fatalf("%d bytes match", n)
		}
	}
}

func BenchmarkMemcpy(b *testing.B) {
	dst, src := make([]byte, 64<<20), make([]byte, 64<<20)
	b.SetBytes(int64(len(dst)))
	for b.Loop() {
		copy(dst, src)
	}
}

func random(r *rand.Rand, b []byte) {
	for i := range b {
		b[i] = byte(r.Uint32())
	}
}
