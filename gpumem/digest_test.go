package gpumem

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"syscall"
	"testing"

	"vnic.dev/vnic/dma"
	"vnic.dev/vnic/internal/testkit"
)

// bigRig returns a GPU of n MiB, a registry with one buffer over its whole memory, and an engine.
func bigRig(t testing.TB, n uint64) (*GPU, *Registry, *Engine) {
	t.Helper()
	files := dma.NewFiles()
	noLeak(t, files)
	g := newGPU(t, files, 0, n<<20)
	space := dma.NewSpace("port0", files)
	reg := NewRegistry([]*GPU{g}, 8)
	testkit.OK(t, errOf(reg.RegisterBuffer(0, 0, n<<20)))
	e := NewEngine(reg, space, EngineOptions{})
	t.Cleanup(func() {
		e.CancelAll()
		reg.CloseAll()
		wantErr(t, "Close", space.Close(), nil)
	})
	return g, reg, e
}

func memory(t testing.TB, g *GPU, f func(b []byte)) {
	t.Helper()
	testkit.OK(t, dma.NewCopier().View(g.Region().Segment(0, uint32(g.Size())), int(g.Size()), func(b []byte) error {
		f(b)
		return nil
	}))
}

// naive computes the digest as the comment of Engine.Digest defines it.
func naive(b []byte, extents []Extent) [32]byte {
	var all, list []byte
	for _, x := range extents {
		all = append(all, b[x.Off:x.Off+x.Size]...)
	}
	for len(all) > 0 {
		n := min(len(all), 1<<20)
		sum := sha256.Sum256(all[:n])
		all, list = all[n:], append(list, sum[:]...)
	}
	return sha256.Sum256(list)
}

func TestDigestIsThatOfTheListOfPieces(t *testing.T) {
	defer func(was bool) { inLanes = was }(inLanes)
	for _, inLanes = range slices.Compact([]bool{inLanes, false}) {
		t.Run(fmt.Sprintf("lanes=%t", inLanes), testDigestIsThatOfTheListOfPieces)
	}
}

func testDigestIsThatOfTheListOfPieces(t *testing.T) {
	g, _, e := bigRig(t, 80)
	memory(t, g, func(b []byte) { random(rand.New(rand.NewPCG(1, 2)), b) })
	for _, x := range [][]Extent{
		nil, {{0, 0}}, {{5, 1}}, {{4096, 1 << 20}}, {{0, 1<<20 + 1}}, {{0, 15 << 20}}, {{0, 16 << 20}}, {{64, 16<<20 + 7}},
		{{0, 80 << 20}}, {{3, 70<<20 + 12345}}, {{0, 20 << 20}, {40 << 20, 20 << 20}}, {{1 << 20, 99}, {77 << 20, 3 << 20}},
		{{0, 2 << 20}, {4 << 20, 16 << 20}, {30 << 20, 0}, {40 << 20, 37<<20 + 1}}, {{0, 80 << 20}, {0, 80 << 20}},
	} {
		hashed := e.Stats().Hashed
		got, err := e.Digest(t.Context(), 0, x)
		testkit.OK(t, err)
		var want [32]byte
		total := uint64(0)
		memory(t, g, func(b []byte) { want = naive(b, x) })
		for _, x := range x {
			total += x.Size
		}
		if got != want {
			t.Errorf("%v: %x, not %x", x, got, want)
		}
		testkit.Equal(t, "bytes hashed", e.Stats().Hashed-hashed, total)
	}
}

// A flipped bit changes the digest, as do swapped pieces and swapped pages.
func TestDigestFindsWhatIsWrong(t *testing.T) {
	g, _, e := bigRig(t, 33)
	memory(t, g, func(b []byte) { FillAt(b, 1, 0) })
	all := []Extent{{0, 33 << 20}}
	digest := func() [32]byte { return testkit.Must(e.Digest(t.Context(), 0, all))(t) }
	good := digest()
	for _, place := range []int{0, 7 << 20, 16<<20 + 4096, 31<<20 - 1, 33<<20 - 1} { // in whole groups, and behind them
		memory(t, g, func(b []byte) { b[place] ^= 0x10 })
		if digest() == good {
			t.Errorf("a flipped bit at %#x is not found", place)
		}
		memory(t, g, func(b []byte) { b[place] ^= 0x10 })
	}
	const n = 1 << 20
	swap := func(i, j, size int) {
		memory(t, g, func(b []byte) {
			for k := range size {
				b[i*size+k], b[j*size+k] = b[j*size+k], b[i*size+k]
			}
		})
	}
	for _, c := range []struct{ i, j, size int }{{0, 1, n}, {3, 32, n}, {17, 31, n}, {1, 2, 4096}, {0, 8000, 4096}} {
		swap(c.i, c.j, c.size)
		if digest() == good {
			t.Errorf("%d bytes of %d and %d swapped: not found", c.size, c.i, c.j)
		}
		swap(c.i, c.j, c.size)
	}
	testkit.Equal(t, "digest of the same bytes", digest(), good)
}

func TestDigestIsRefused(t *testing.T) {
	g, reg, e := bigRig(t, 40)
	for _, c := range []struct {
		name    string
		gpu     int
		extents []Extent
		want    error
	}{
		{"another GPU", 1, nil, syscall.ENODEV},
		{"beyond the GPU", 0, []Extent{{0, 40<<20 + 1}}, syscall.EINVAL},
		{"wraps", 0, []Extent{{1<<64 - 4096, 8192}}, syscall.EINVAL},
		{"begins beyond", 0, []Extent{{41 << 20, 1}}, syscall.EINVAL},
	} {
		_, err := e.Digest(t.Context(), c.gpu, c.extents)
		testkit.ErrorIs(t, err, c.want, c.name)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	gone := errors.New("gone")
	cancel(gone)
	testkit.ErrorIs(t, testkit.Err(e.Digest(ctx, 0, []Extent{{0, 40 << 20}})), gone, "cancelled")

	// Leave one page between two buffers unregistered.
	reg.CloseAll()
	testkit.OK(t, errOf(reg.RegisterBuffer(0, 0, 18<<20)))
	testkit.OK(t, errOf(reg.RegisterBuffer(0, 18<<20+4096, 22<<20-4096)))
	for _, x := range []Extent{{17 << 20, 2 << 20}, {10 << 20, 30 << 20}, {18 << 20, 1}} {
		testkit.ErrorIs(t, testkit.Err(e.Digest(t.Context(), 0, []Extent{x})), syscall.EFAULT, fmt.Sprint(x))
	}
	// Each extent is in one of three adjacent buffers; a piece may consist of parts in two of them.
	testkit.OK(t, errOf(reg.RegisterBuffer(0, 18<<20, 4096)))
	all := []Extent{{0, 18 << 20}, {18 << 20, 4096}, {18<<20 + 4096, 22<<20 - 4096}}
	var want [32]byte
	memory(t, g, func(b []byte) { want = naive(b, all) })
	testkit.Equal(t, "digest", testkit.Must(e.Digest(t.Context(), 0, all))(t), want)
}

// CancelAll ends a digest.
func TestDigestEndsByCancelAll(t *testing.T) {
	_, _, e := bigRig(t, 64)
	for range maxInHand { // no piece of the digest gets a place
		e.inHand <- struct{}{}
	}
	errc := make(chan error, 1)
	go func() { errc <- testkit.Err(e.Digest(t.Context(), 0, []Extent{{0, 64 << 20}})) }()
	for alive := 0; alive == 0; runtime.Gosched() {
		e.mu.Lock()
		alive = len(e.alive)
		e.mu.Unlock()
	}
	all := make(chan struct{})
	go func() { e.CancelAll(); close(all) }()
	for cancelled := false; !cancelled; runtime.Gosched() {
		e.mu.Lock()
		for r := range e.alive {
			cancelled = r.cancelled.Load()
		}
		e.mu.Unlock()
	}
	for range maxInHand {
		e.release()
	}
	testkit.ErrorIs(t, <-errc, syscall.ECANCELED)
	<-all
	testkit.Equal(t, "bytes hashed", e.Stats().Hashed, 0)
}

func TestDigestOfMemoryThatGoes(t *testing.T) {
	files := dma.NewFiles()
	ram := testkit.Memfd(t, 32<<20)
	file := testkit.Must(files.Open(int(ram.Fd()), 32<<20))(t)
	defer file.Close()
	file.SetGPU(0)
	g := &GPU{id: 0, file: file, region: testkit.Must(file.Region(0, 32<<20))(t)}
	reg := NewRegistry([]*GPU{g}, 1)
	testkit.OK(t, errOf(reg.RegisterBuffer(0, 0, 32<<20)))
	space := dma.NewSpace("port0", files)
	e := NewEngine(reg, space, EngineOptions{})
	testkit.OK(t, testkit.Err(e.Digest(t.Context(), 0, []Extent{{0, 32 << 20}})))
	testkit.OK(t, ram.Truncate(20<<20))
	testkit.ErrorIs(t, testkit.Err(e.Digest(t.Context(), 0, []Extent{{16 << 20, 16 << 20}})), dma.ErrFault)
	testkit.Equal(t, "pieces in hand", len(e.inHand), 0)
	reg.CloseAll()
	testkit.OK(t, space.Close())
}

func BenchmarkDigest(b *testing.B) {
	_, _, e := bigRig(b, 256)
	b.SetBytes(256 << 20)
	for b.Loop() {
		testkit.OK(b, testkit.Err(e.Digest(b.Context(), 0, []Extent{{0, 256 << 20}})))
	}
}
