package dma

import (
	"testing"

	"pgregory.net/rapid"
	"vnic.dev/vnic/internal/testkit"
)

func TestDomainsOfAGPU(t *testing.T) {
	f := openFile(t, 64<<10)
	if d, n := f.MemKind(4096); d != Host || n != 60<<10 || f.GPU() != -1 {
		t.Fatalf("before SetGPU: %v for %d bytes", d, n)
	}
	testkit.ErrorIs(t, f.Register(0, 4096), ErrBadFile, "Register in host memory")
	f.SetGPU(3)
	for _, r := range [][2]uint64{{0, 0}, {0, 64<<10 + 1}, {64 << 10, 1}, {1, ^uint64(0)}, {^uint64(0), 2}} {
		testkit.ErrorIs(t, f.Register(r[0], r[1]), ErrBounds, "Register [%#x, +%#x)", r[0], r[1])
	}
	testkit.ErrorIs(t, f.Unregister(0, 4096), ErrBounds, "Unregister of nothing")
	if d, n := f.MemKind(64 << 10); n != 0 {
		t.Fatalf("at the end: %v for %d bytes", d, n)
	}
}

// The test compares MemKind with a count of the registrations of each byte.
//
// Invariant: dma: Each byte that is copied is counted by the kinds of memory it came from and went
// to, and by GPU.
func TestDomainAgainstACountPerByte(t *testing.T) {
	leakFree(t)
	const size = 64
	rapid.Check(t, func(t *rapid.T) {
		f := &File{mem: make([]byte, size)}
		f.SetGPU(0)
		var count [size]int
		type rng struct{ off, n uint64 }
		var have []rng
		for range rapid.IntRange(1, 30).Draw(t, "steps") {
			if len(have) > 0 && rapid.Bool().Draw(t, "unregister") {
				i := rapid.IntRange(0, len(have)-1).Draw(t, "which")
				r := have[i]
				have = append(have[:i], have[i+1:]...)
				testkit.OK(t, f.Unregister(r.off, r.n))
				for j := r.off; j < r.off+r.n; j++ {
					count[j]--
				}
			} else {
				off := rapid.Uint64Range(0, size-1).Draw(t, "off")
				n := rapid.Uint64Range(1, size-off).Draw(t, "n")
				have = append(have, rng{off, n})
				testkit.OK(t, f.Register(off, n))
				for j := off; j < off+n; j++ {
					count[j]++
				}
			}
			for off := range uint64(size) {
				d, n := f.MemKind(off)
				if want := count[off] > 0; (d == GPU) != want || n == 0 || n > size-off {
					t.Fatalf("byte %d: %v for %d bytes, registered %v", off, d, n, want)
				}
				for j := off; j < off+n; j++ {
					if (count[j] > 0) != (d == GPU) {
						t.Fatalf("byte %d is not %v: said at %d", j, d, off)
					}
				}
				if end := off + n; end < size && (count[end] > 0) == (d == GPU) {
					t.Fatalf("%v goes on at %d: said at %d", d, end, off)
				}
			}
		}
	})
}
