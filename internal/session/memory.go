package session

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"runtime"
	"sync/atomic"

	"golang.org/x/sync/errgroup"

	"vnic.dev/vnic/dma"
	"vnic.dev/vnic/gpumem"
	"vnic.dev/vnic/internal/kernelnic"
)

// Memory is the part of a GPU's memory that a guest uses: all of it or, if the guest's kernel drives the NIC, a
// window: the memory that the guest has allocated. Its methods access this memory from the host. Offsets (off)
// count from the beginning of the part.
type Memory struct {
	Name   string // for messages
	GPU    *gpumem.GPU
	Window []kernelnic.Extent // nil: the guest uses all of the GPU's memory, or has no window yet
}

// Extents returns where in the GPU's memory the guest's bytes [off, off+n) lie.
func (m *Memory) Extents(off, n uint64) (list []gpumem.Extent, err error) {
	if m.Window == nil {
		return []gpumem.Extent{{Off: off, Size: n}}, nil
	}
	for _, x := range m.Window {
		if n == 0 {
			return list, nil
		}
		if off < x.Off || off-x.Off >= x.Size {
			continue
		}
		k := min(n, x.Size-(off-x.Off))
		list = append(list, gpumem.Extent{Off: x.GPUOff + (off - x.Off), Size: k})
		off, n = off+k, n-k
	}
	if n > 0 {
		return nil, fmt.Errorf("guest %s: %d bytes at %#x are outside its window", m.Name, n, off)
	}
	return list, nil
}

// View calls f with the bytes of [off, off+n), in order, in pieces of at most 1 MiB, until an error or the end of ctx.
func (m *Memory) View(ctx context.Context, off, n uint64, f func([]byte) error) error {
	extents, err := m.Extents(off, n)
	for _, x := range extents {
		if err := ViewRegion(ctx, m.GPU.Region(), x.Off, x.Size, 1<<20, f); err != nil {
			return err
		}
	}
	return err
}

// ViewRegion calls a function (each) with the bytes of [off, off+n) of a region, in order, in pieces of at most
// limit bytes, until an error or the end of ctx.
func ViewRegion(ctx context.Context, r *dma.Region, off, n uint64, limit int, each func([]byte) error) error {
	f := func(b []byte) error {
		if err := context.Cause(ctx); err != nil {
			return err
		}
		return each(b)
	}
	return withCopier(func(c *dma.Copier) error {
		for n > 0 {
			k := min(n, 1<<30)
			if err := c.View(dma.Segment{Region: r, Off: off, Len: uint32(k)}, limit, f); err != nil {
				return err
			}
			off, n = off+k, n-k
		}
		return nil
	})
}

// withCopier calls f on a new goroutine, where c returns a fault in mapped memory as an error (dma.Go), and returns
// f's error.
func withCopier(f func(c *dma.Copier) error) error {
	c := dma.NewCopier()
	errc := make(chan error, 1)
	dma.Go(func() { errc <- f(c) })
	return <-errc
}

// Each calls f with the bytes of [off, off+n), in pieces of at most 1 MiB and in any order, possibly from several
// goroutines at the same time, until an error or the end of ctx. pos is the position of the piece b, counted from off.
func (m *Memory) Each(ctx context.Context, off, n uint64, f func(b []byte, pos uint64) error) error {
	const share = 16 << 20 // bytes
	var next atomic.Uint64
	eg, ctx := errgroup.WithContext(ctx)
	for range min(uint64(runtime.NumCPU()), (n+share-1)/share) {
		eg.Go(func() error {
			for {
				pos := next.Add(share) - share
				if pos >= n {
					return nil
				}
				if err := m.View(ctx, off+pos, min(share, n-pos), func(b []byte) error {
					err := f(b, pos)
					pos += uint64(len(b))
					return err
				}); err != nil {
					return err
				}
			}
		})
	}
	return eg.Wait()
}

// Write copies b to [off, off+len(b)).
func (m *Memory) Write(off uint64, b []byte) error {
	extents, err := m.Extents(off, uint64(len(b)))
	if err != nil {
		return err
	}
	return withCopier(func(c *dma.Copier) error {
		for _, x := range extents {
			if _, err := c.Write([]dma.Segment{m.GPU.Region().Segment(x.Off, uint32(x.Size))}, b[:x.Size]); err != nil {
				return fmt.Errorf("guest %s: write %d bytes of its GPU's memory: %w", m.Name, x.Size, err)
			}
			b = b[x.Size:]
		}
		return nil
	})
}

// Content is a function that writes to b the bytes of some data from position pos on. A nil Content stands for
// unknown data.
type Content func(b []byte, pos uint64)

// From returns the Content that begins at position base of c; nil if c is nil.
func (c Content) From(base uint64) Content {
	if c == nil {
		return nil
	}
	return func(b []byte, pos uint64) { c(b, base+pos) }
}

// Pattern returns the Content that gpumem.FillAt writes for a seed.
func Pattern(seed uint64) Content {
	return func(b []byte, pos uint64) { gpumem.FillAt(b, seed, pos) }
}

// each calls f with the first n bytes of c, in pieces of at most 1 MiB, until f fails or ctx ends.
func (c Content) each(ctx context.Context, n uint64, f func(b []byte, pos uint64) error) error {
	b := make([]byte, min(n, 1<<20))
	for pos := uint64(0); pos < n; pos += uint64(len(b)) {
		if err := context.Cause(ctx); err != nil {
			return err
		}
		b = b[:min(uint64(len(b)), n-pos)]
		c(b, pos)
		if err := f(b, pos); err != nil {
			return err
		}
	}
	return nil
}

// SHA256 returns the digest of the first n bytes of c.
func (c Content) SHA256(ctx context.Context, n uint64) (d [sha256.Size]byte, err error) {
	h := sha256.New()
	err = c.each(ctx, n, func(b []byte, _ uint64) error { _, err := h.Write(b); return err })
	h.Sum(d[:0])
	return d, err
}

// Fill writes the first n bytes of gen to [off, off+n).
func (m *Memory) Fill(ctx context.Context, off, n uint64, gen Content) error {
	return gen.each(ctx, n, func(b []byte, pos uint64) error { return m.Write(off+pos, b) })
}

// Poison sets each byte of [off, off+n) to value.
func (m *Memory) Poison(ctx context.Context, off, n uint64, value byte) error {
	return m.Fill(ctx, off, n, func(b []byte, _ uint64) {
		for i := range b {
			b[i] = value
		}
	})
}

// Differs returns the position, counted from off, of the first of the n bytes at off that differs from gen's, or n.
func (m *Memory) Differs(ctx context.Context, off, n uint64, gen Content) (uint64, error) {
	return m.FirstWrong(ctx, off, n, func(b []byte, pos uint64) int {
		want := make([]byte, len(b))
		gen(want, pos)
		if bytes.Equal(b, want) {
			return len(b)
		}
		i := 0
		for b[i] == want[i] {
			i++
		}
		return i
	})
}

// FirstWrong returns the position, counted from off, of the first wrong byte among the n bytes at off, or n. match
// returns how many bytes of the piece b, at position pos, are right before the first wrong one; several goroutines
// may call match at the same time.
func (m *Memory) FirstWrong(ctx context.Context, off, n uint64, match func(b []byte, pos uint64) int) (uint64, error) {
	var first atomic.Uint64
	first.Store(n)
	err := m.Each(ctx, off, n, func(b []byte, pos uint64) error {
		right := match(b, pos)
		if right == len(b) {
			return nil
		}
		pos += uint64(right)
		for was := first.Load(); pos < was && !first.CompareAndSwap(was, pos); was = first.Load() {
		}
		return nil
	})
	return first.Load(), err
}

// SHA256 returns the digest of the n bytes at off.
func (m *Memory) SHA256(ctx context.Context, off, n uint64) (d [sha256.Size]byte, err error) {
	h := sha256.New()
	err = m.View(ctx, off, n, func(b []byte) error { _, err := h.Write(b); return err })
	h.Sum(d[:0])
	return d, err
}
