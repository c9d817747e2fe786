package dma

import (
	"bytes"
	"errors"
	"slices"
	"testing"

	"pgregory.net/rapid"
	"vnic.dev/vnic/internal/testkit"
)

// Invariant: dma: Each byte that is copied is counted by the kinds of memory it came from and went
// to, and by GPU.
func TestCopyAgainstBytes(t *testing.T) {
	leakFree(t)
	const size = 2048
	files := NewFiles()
	var regions []*Region
	for i := range 3 {
		f := testkit.Must(files.Open(memfd(t, size), 0))(t)
		defer f.Close()
		r := testkit.Must(f.Region(0, size))(t)
		if i > 0 {
			f.SetGPU(i * 7)
			f.Register(100, 300)
			f.Register(700, 5)
		}
		regions = append(regions, r)
	}
	regions = append(regions, NewBuffer(make([]byte, size), Wire))
	domainAt := func(s Segment, i uint32) (MemKind, int) {
		s.Off += uint64(i)
		s.Len -= i
		d, n := s.MemKind()
		if n == 0 {
			t.Fatal("no domain")
		}
		return d, s.GPU()
	}
	c := NewCopier()
	rapid.Check(t, func(t *rapid.T) {
		for _, r := range regions {
			copy(r.mem, rapid.SliceOfN(rapid.Byte(), 64, 64).Draw(t, "bytes"))
			for i := 64; i < size; i++ {
				r.mem[i] = r.mem[i-64] + byte(i)
			}
		}
		half := rapid.IntRange(1, 2).Draw(t, "sources") // regions 0 to half are sources, the others destinations
		draw := func(from, to int, name string) (segs []Segment) {
			for range rapid.IntRange(0, 5).Draw(t, name) {
				off := rapid.Uint64Range(0, size).Draw(t, "off")
				segs = append(segs, regions[rapid.IntRange(from, to).Draw(t, "region")].Segment(off,
					uint32(rapid.Uint64Range(0, min(500, size-off)).Draw(t, "len"))))
			}
			return segs
		}
		src, dst := draw(0, half, "src"), draw(half+1, 3, "dst")
		type byteAt struct {
			d   MemKind
			gpu int
		}
		places := func(segs []Segment) (p []byteAt) {
			for _, s := range segs {
				for i := range s.Len {
					d, gpu := domainAt(s, i)
					p = append(p, byteAt{d, gpu})
				}
			}
			return p
		}
		flat := func(segs []Segment) (b []byte) {
			for _, s := range segs {
				b = append(b, s.Region.mem[s.Off:s.Off+uint64(s.Len)]...)
			}
			return b
		}
		from, to := places(src), places(dst)
		data := flat(src)
		n := min(len(from), len(to))
		want := snapshot(c.Counts())
		// count adds a copy to the expected counters want, and compares the copier's counters with want.
		count := func(to, from []byteAt) {
			for i := range min(len(to), len(from)) {
				gpu := to[i].gpu
				if gpu < 0 {
					gpu = from[i].gpu
				}
				want[from[i].d][to[i].d][gpu+1]++
			}
			if snapshot(c.Counts()) != want {
				t.Fatal("counts differ")
			}
		}
		// model returns the bytes of the regions as they must be after a copy of b to dst.
		model := func(b []byte) map[*Region][]byte {
			m := map[*Region][]byte{}
			for _, r := range regions {
				m[r] = bytes.Clone(r.mem)
			}
			for _, s := range dst {
				b = b[copy(m[s.Region][s.Off:s.Off+uint64(s.Len)], b):]
			}
			return m
		}
		holds := func(what string, m map[*Region][]byte) {
			for _, r := range regions {
				if !bytes.Equal(r.mem, m[r]) {
					t.Fatalf("%s: bytes differ", what)
				}
			}
		}
		copied := model(data[:n])
		var got uint64
		var err error
		if rapid.Bool().Draw(t, "sum") {
			var sum uint16
			got, sum, err = c.CopySum(dst, src)
			if w := naiveSum(data[:n]); sum != w {
				t.Fatalf("sum %#x, want %#x", sum, w)
			}
		} else {
			got, err = c.Copy(dst, src)
		}
		if got != uint64(n) || err != nil {
			t.Fatalf("%d bytes of %d: %v", got, n, err)
		}
		holds("copy", copied)
		count(to, from)
		buf := make([]byte, rapid.IntRange(0, 600).Draw(t, "private"))
		private := slices.Repeat([]byteAt{{Private, -1}}, len(buf))
		k, err := c.Read(buf, src)
		if err != nil || k != min(len(buf), len(data)) || !bytes.Equal(buf[:k], flat(src)[:k]) {
			t.Fatalf("Read: %d, %v", k, err)
		}
		count(private, from)
		k, err = c.Write(dst, buf)
		if err != nil || k != min(len(buf), len(to)) {
			t.Fatalf("Write: %d, %v", k, err)
		}
		count(to, private)
		both := append(bytes.Clone(buf), flat(src)...)
		both = both[:min(len(both), len(to))]
		copied = model(both)
		if got, err := c.CopyBehind(dst, buf, src); err != nil || got != uint64(len(both)) {
			t.Fatalf("CopyBehind: %d of %d, %v", got, len(both), err)
		}
		holds("CopyBehind", copied)
		count(to, slices.Concat(private, from))
		if sum, err := c.Sum(dst); err != nil || sum != naiveSum(flat(dst)) {
			t.Fatalf("Sum: %#x, %v", sum, err)
		}
	})
}

func snapshot(c *Counts) (m [NumMemKinds][NumMemKinds][MaxGPUs + 1]uint64) {
	for s := range NumMemKinds {
		for d := range NumMemKinds {
			for g := range MaxGPUs + 1 {
				m[s][d][g] = c.Bytes(s, d, g-1)
			}
		}
	}
	return m
}

func TestOverlappingCopyIsAMove(t *testing.T) {
	f := openFile(t, 64<<10)
	r, _ := f.Region(0, 64<<10)
	other, _ := f.Region(512, 32<<10) // bytes of the same file through another region
	c := NewCopier()
	for _, d := range []struct{ dst, src Segment }{
		{r.Segment(1, 5000), r.Segment(0, 5000)}, {r.Segment(0, 5000), r.Segment(1, 5000)},
		{r.Segment(777, 20000), r.Segment(300, 20000)}, {other.Segment(0, 5000), r.Segment(100, 5000)},
		{r.Segment(600, 5000), other.Segment(0, 5000)}, {r.Segment(9, 300), r.Segment(9, 300)},
	} {
		for i := range r.mem {
			r.mem[i] = byte(i * 7 >> 3)
		}
		want := bytes.Clone(d.src.Region.mem[d.src.Off:][:d.src.Len])
		testkit.OK(t, testkit.Err(c.Copy([]Segment{d.dst}, []Segment{d.src})))
		if !bytes.Equal(want, d.dst.Region.mem[d.dst.Off:][:d.dst.Len]) {
			t.Errorf("%v to %v", d.src, d.dst)
		}
	}
}

func TestCopierRefusesToWriteReadOnly(t *testing.T) {
	s := guestSpace(t)
	add(t, s, Map{Size: page, FD: memfd(t, page), ReadOnly: true})
	defer s.Leave(s.Enter())
	segs, err := s.Translate(nil, 0, page, Read)
	testkit.OK(t, err)
	c := NewCopier()
	if n, err := c.Write(segs, []byte("x")); n != 0 || !errors.Is(err, ErrAccess) {
		t.Fatalf("Write: %d, %v", n, err)
	}
	if n, err := c.Read(make([]byte, 8), segs); n != 8 || err != nil {
		t.Fatalf("Read: %d, %v", n, err)
	}
}

func TestViewInPieces(t *testing.T) {
	r := NewBuffer([]byte("0123456789"), Host)
	c := NewCopier()
	var got []string
	view := func(limit int, stop error) error {
		got = nil
		return c.View(r.Segment(1, 8), limit, func(b []byte) error {
			got = append(got, string(b))
			if cap(b) != len(b) {
				t.Error("more than the piece in reach")
			}
			return stop
		})
	}
	if err := view(3, nil); err != nil || len(got) != 3 || got[0] != "123" || got[2] != "78" {
		t.Fatalf("%q, %v", got, err)
	}
	stop := errors.New("enough")
	if err := view(3, stop); !errors.Is(err, stop) || len(got) != 1 {
		t.Fatalf("%q, %v", got, err)
	}
	if err := view(0, nil); !errors.Is(err, ErrBounds) {
		t.Fatal(err)
	}
	if d, n := r.Segment(1, 8).MemKind(); d != Host || n != 8 {
		t.Fatalf("%v for %d", d, n)
	}
}

func TestCountsOutOfRange(t *testing.T) {
	c := NewCopier().Counts()
	if c.Bytes(NumMemKinds, 0, 0)+c.Bytes(0, NumMemKinds, 0)+c.Bytes(0, 0, MaxGPUs)+c.Bytes(0, 0, -2)+c.Total(Host,
		GPU) != 0 {
		t.Fatal("counted")
	}
	for d := range NumMemKinds {
		if d.String() == "" || d.String() == (d+1).String() {
			t.Fatalf("domain %d has no name", d)
		}
	}
}
