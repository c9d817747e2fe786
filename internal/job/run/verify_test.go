package run

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"vnic.dev/vnic/dma"
	"vnic.dev/vnic/gpumem"
	"vnic.dev/vnic/internal/kernelnic"
	"vnic.dev/vnic/internal/session"
	"vnic.dev/vnic/internal/testkit"
)

// tampered runs with o. It calls hook before the guests boot, and change with the destination's bytes before
// the first round of each mode is verified; both may be nil. An error other than an ErrProof fails the test.
func tampered(t *testing.T, o Options, change func(b []byte), hook func(*runner)) (*Report, error) {
	t.Helper()
	testkit.LeavesNothing(t)
	p := planOf(t, o)
	var l *runner
	o.hook = func(r *runner) {
		l = r
		if hook != nil {
			hook(r)
		}
	}
	o.Stage = func(s Step) {
		if s.Stage != "verify" || s.Round != 1 || change == nil {
			return
		}
		seg := l.streams[0].ends[1].GPU.Region().Segment(p.pool, uint32(p.rounds[0]))
		testkit.OK(t, dma.NewCopier().View(seg, int(p.rounds[0]), func(b []byte) error { change(b); return nil }))
	}
	rep, err := Do(t.Context(), o)
	if err != nil && !errors.Is(err, ErrProof) {
		t.Fatal(err)
	}
	return rep, err
}

// A wrong byte in the destination is found by the comparison, whatever the digests say.
//
// Invariant: vnic run: Every byte of the destination is compared with what was sent.
func TestWrongDestinationIsFound(t *testing.T) {
	testkit.Slow(t)
	const size = 5<<20 + 12345
	changes := map[string]struct {
		change func([]byte)
		first  int // the first wrong byte
	}{
		"first bit":         {func(b []byte) { b[0] ^= 1 }, 0},
		"a bit":             {func(b []byte) { b[3<<20+77] ^= 0x40 }, 3<<20 + 77},
		"last bit":          {func(b []byte) { b[size-1] ^= 0x80 }, size - 1},
		"two pages swapped": {func(b []byte) { swap(b[5*4096:6*4096], b[1000*4096:]) }, 5 * 4096},
		"two MiB swapped":   {func(b []byte) { swap(b[1<<20:2<<20], b[4<<20:]) }, 1 << 20},
		"a page repeated":   {func(b []byte) { copy(b[9*4096:10*4096], b[8*4096:]) }, 9 * 4096},
		"a page of zeros":   {func(b []byte) { clear(b[1279*4096:][:4096]) }, 1279 * 4096},
		"two bits":          {func(b []byte) { b[4<<20] ^= 1; b[100] ^= 1 }, 100},
	}
	blind := func(l *runner) { // makes the digests of source and destination agree
		for _, e := range l.streams[0].ends {
			e.digest = func(context.Context, uint64, uint64, <-chan struct{}) (sum, error) { return sum{}, nil }
		}
	}
	for name, c := range changes {
		for _, kind := range []string{DigestPieces, DigestSHA256, "no digest"} {
			t.Run(name+", "+kind, func(t *testing.T) {
				o := options(size)
				o.Modes, o.Digest = o.Modes[:1], kind
				var hook func(*runner)
				if kind == "no digest" {
					o.Digest, hook = DigestPieces, blind
				}
				rep, err := tampered(t, o, c.change, hook)
				if err == nil || rep.Runs[0].SHA256Match {
					t.Fatalf("not found: %v", err)
				}
				testkit.ErrorSays(t, err, fmt.Sprintf("mode devmem, round 1: byte %d of the destination is not what the seed says",
					c.first))
				testkit.ErrorSays(t, err, "the destination's digest is not the source's")
			})
		}
	}
}

func swap(a, b []byte) {
	for i := range a {
		a[i], b[i] = b[i], a[i]
	}
}

// A wrong digest of either engine is found although every byte is right.
//
// Invariant: vnic run: The digests of source and destination, each computed by its GPU's engine, agree.
func TestWrongDigestIsFound(t *testing.T) {
	for who, name := range []string{"of the source", "of the destination", "of none"} {
		t.Run(name, func(t *testing.T) {
			rep, err := tampered(t, options(2<<20+1), nil, func(l *runner) {
				if who == len(l.streams[0].ends) {
					return
				}
				e := l.streams[0].ends[who]
				e.digest = func(ctx context.Context, off, n uint64, hurry <-chan struct{}) (sum, error) {
					d, err := e.engineDigest(ctx, off, n, hurry)
					d[31] ^= 1
					return d, err
				}
			})
			if who == 2 {
				testkit.OK(t, err)
				return
			}
			if err == nil || rep.Runs[0].SHA256Match || rep.Runs[1].SHA256Match {
				t.Fatalf("not found: %v", err)
			}
			testkit.ErrorSays(t, err, "the destination's digest is not the source's")
			if strings.Contains(err.Error(), "not what the seed says") {
				t.Error(err)
			}
		})
	}
}

// The digests of the rounds are of the kind Options.Digest, computed as the JSON schema documents.
func TestDigestKinds(t *testing.T) {
	testkit.Slow(t)
	for _, kind := range []string{DigestPieces, DigestSHA256} {
		t.Run(kind, func(t *testing.T) {
			o := options(40<<20 + 99) // two rounds, as a GPU has 32M
			o.Digest = kind
			rep := do(t, o)
			testkit.Equal(t, "digest", rep.Digest, kind)
			for i, r := range rep.Runs {
				var want []string
				seeds := rand.New(rand.NewPCG(o.Seed, uint64(i)))
				for _, n := range planOf(t, o).rounds {
					b := make([]byte, n)
					gpumem.FillAt(b, seeds.Uint64(), 0)
					var list []byte
					for rest := b; len(rest) > 0 && kind == DigestPieces; {
						k := min(len(rest), 1<<20)
						d := sha256.Sum256(rest[:k])
						rest, list = rest[k:], append(list, d[:]...)
					}
					if kind == DigestPieces {
						b = list
					}
					d := sha256.Sum256(b)
					want = append(want, hex.EncodeToString(d[:]))
				}
				testkit.Equal(t, "sha256", r.SHA256, strings.Join(want, ","))
			}
		})
	}
	o := options(1 << 20)
	o.Digest = "md5"
	testkit.ErrorSays(t, o.Check(), "--digest md5: pieces or sha256")
}

// The part of a GPU's memory that a guest uses, its window, may lie in several extents of the memory.
func TestExtentsOfAWindow(t *testing.T) {
	e := &session.Memory{Name: "B", Window: []kernelnic.Extent{{Off: 0, GPUOff: 0x800000, Size: 0x200000},
		{Off: 0x200000, GPUOff: 0x200000, Size: 0x400000}}}
	for _, c := range []struct {
		off, n uint64
		want   []gpumem.Extent
	}{
		{0, 1, []gpumem.Extent{{Off: 0x800000, Size: 1}}},
		{0x1000, 0x200000, []gpumem.Extent{{Off: 0x801000, Size: 0x1ff000}, {Off: 0x200000, Size: 0x1000}}},
		{0x200000, 0x400000, []gpumem.Extent{{Off: 0x200000, Size: 0x400000}}},
		{0x5fffff, 1, []gpumem.Extent{{Off: 0x5fffff, Size: 1}}},
	} {
		got, err := e.Extents(c.off, c.n)
		testkit.OK(t, err)
		testkit.Equal(t, fmt.Sprintf("[%#x, +%#x)", c.off, c.n), fmt.Sprint(got), fmt.Sprint(c.want))
	}
	for _, c := range [][2]uint64{{0x600000, 1}, {0x5fffff, 2}, {1 << 63, 1}} {
		testkit.ErrorSays(t, testkit.Err(e.Extents(c[0], c[1])), "outside its window")
	}
}
