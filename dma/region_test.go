package dma

import (
	"errors"
	"testing"

	"pgregory.net/rapid"
	"vnic.dev/vnic/internal/testkit"
)

func TestCutAgainstBytes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := NewBuffer(make([]byte, 256), Wire)
		var segs []Segment
		var bytes []uint64
		for range rapid.IntRange(0, 6).Draw(t, "segments") {
			s := r.Segment(rapid.Uint64Range(0, 200).Draw(t, "off"), rapid.Uint32Range(0, 50).Draw(t, "len"))
			segs = append(segs, s)
			for i := range uint64(s.Len) {
				bytes = append(bytes, s.Off+i)
			}
		}
		if Len(segs) != uint64(len(bytes)) {
			t.Fatalf("Len %d of %d", Len(segs), len(bytes))
		}
		off := rapid.Uint64Range(0, uint64(len(bytes))+3).Draw(t, "cut off")
		n := rapid.OneOf(rapid.Uint64Range(0, uint64(len(bytes))+3), rapid.Just(^uint64(0))).Draw(t, "cut n")
		want := bytes[min(off, uint64(len(bytes))):]
		want = want[:min(n, uint64(len(want)))]
		prefix := r.Segment(1, 1)
		got := Cut([]Segment{prefix}, segs, off, n)
		if got[0] != prefix {
			t.Fatal("Cut does not append")
		}
		i := 0
		for _, s := range got[1:] {
			if s.Len == 0 {
				t.Fatal("empty segment")
			}
			for k := range uint64(s.Len) {
				if i >= len(want) || want[i] != s.Off+k {
					t.Fatalf("byte %d of [%d, +%d): %v", i, off, n, got)
				}
				i++
			}
		}
		if i != len(want) {
			t.Fatalf("%d bytes of %d", i, len(want))
		}
	})
}

func TestReuseKeepsNoLongList(t *testing.T) {
	for _, c := range []struct{ used, room, want int }{
		{0, 0, 0},
		{3, KeepSegments, KeepSegments},
		{KeepSegments, KeepSegments, KeepSegments},
		{0, KeepSegments + 1, 0},
		{KeepSegments, KeepSegments + 1, 0},
		{KeepSegments + 1, 2 * KeepSegments, 2 * KeepSegments}, // used is long, too: the list is kept
	} {
		if got := Reuse(make([]Segment, c.used, c.room)); len(got) != 0 || cap(got) != c.want {
			t.Errorf("%d of %d: %d of %d, want 0 of %d", c.used, c.room, len(got), cap(got), c.want)
		}
	}
}

// Invariant: dma: A segment outside its region is an error of the copier.
func TestSegmentOutsideItsRegionIsAnError(t *testing.T) {
	f := openFile(t, 8192)
	inFile, err := f.Region(4096, 4096)
	testkit.OK(t, err)
	testkit.ErrorIs(t, testkit.Err(f.Region(4096, 4097)), ErrBounds, "region past the end")
	c := NewCopier()
	ok := NewBuffer(make([]byte, 8192), Wire).Segment(0, 8192)
	for _, r := range []*Region{inFile, NewBuffer(make([]byte, 4096), Host)} {
		for _, s := range []Segment{r.Segment(4096, 1), r.Segment(4095, 2), r.Segment(^uint64(0), 2),
			r.Segment(1, ^uint32(0)), {Len: 1}} {
			if n, err := c.Copy([]Segment{s}, []Segment{ok}); n != 0 || !errors.Is(err, ErrBounds) {
				t.Errorf("copy to %v: %d, %v", s, n, err)
			}
			if n, _, err := c.CopySum([]Segment{ok}, []Segment{s}); n != 0 || !errors.Is(err, ErrBounds) {
				t.Errorf("copy from %v: %d, %v", s, n, err)
			}
			testkit.ErrorIs(t, testkit.Err(c.Sum([]Segment{s})), ErrBounds, "sum of %v", s)
			testkit.ErrorIs(t, c.View(s, 10, func([]byte) error { t.Error("called"); return nil }), ErrBounds, "view of %v", s)
		}
		if n, err := c.Copy([]Segment{r.Segment(0, 4096)}, []Segment{ok}); n != 4096 || err != nil {
			t.Fatalf("copy inside: %d, %v", n, err)
		}
	}
}
