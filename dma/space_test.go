package dma

import (
	"bytes"
	"errors"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
	"vnic.dev/vnic/internal/testkit"
)

const (
	page = 4096
	top  = 1<<64 - page // address of the last page
)

// Invariant: dma: A translation stays inside mapped regions, and checks the access right of each.
func TestTranslateGoesAcrossRegionsThatTouchAndNoFurther(t *testing.T) {
	s := guestSpace(t)
	a, b := memfd(t, 4*page), memfd(t, 4*page)
	for i, fd := range []int{a, b} {
		for p := range 4 {
			testkit.OK(t, testkit.Err(unix.Pwrite(fd, bytes.Repeat([]byte{byte(16*i + p + 1)}, page), int64(p*page))))
		}
	}
	add(t, s, Map{IOVA: 10 * page, Size: 2 * page, FD: a})
	add(t, s, Map{IOVA: 12 * page, Size: 2 * page, FD: b, FileOffset: page})
	add(t, s, Map{IOVA: 14 * page, Size: page, FD: a, FileOffset: 3 * page, ReadOnly: true})
	add(t, s, Map{IOVA: 16 * page, Size: page, FD: a}) // after a hole in the addresses
	add(t, s, Map{IOVA: 20 * page, Size: page, FD: -1, NoAccess: true})
	add(t, s, Map{IOVA: top, Size: page, FD: b})                     // ends at 2^64
	add(t, s, Map{IOVA: 0, Size: page, FD: b, FileOffset: 3 * page}) // a translation does not continue here after 2^64
	if got := len(s.Regions()); got != 7 || s.Generation() != 7 {
		t.Fatalf("%d regions, generation %d", got, s.Generation())
	}
	type place struct{ iova, off, n uint64 }
	for _, c := range []struct {
		name    string
		iova, n uint64
		access  Access
		want    []place
		err     error
	}{
		{"inside one", 10*page + 5, 100, Write, []place{{10 * page, 5, 100}}, nil},
		{"nothing", 99 * page, 0, Write, nil, nil},
		{"whole", 10 * page, 2 * page, Read, []place{{10 * page, 0, 2 * page}}, nil},
		{"across", 12*page - 1, 2, Write, []place{{10 * page, 2*page - 1, 1}, {12 * page, 0, 1}}, nil},
		{"across three", 11 * page, 4 * page, Read, []place{{10 * page, page, page}, {12 * page, 0, 2 * page},
			{14 * page, 0, page}}, nil},
		{"write to read-only", 14*page - 1, 2, Write, nil, ErrAccess},
		{"unknown access counts as a write", 14 * page, 1, 7, nil, ErrAccess},
		{"into the hole", 14 * page, page + 1, Read, nil, ErrUnmapped},
		{"in the hole", 15 * page, 1, Read, nil, ErrUnmapped},
		{"across the hole", 14 * page, 3 * page, Read, nil, ErrUnmapped},
		{"no access", 20 * page, 1, Read, nil, ErrAccess},
		{"before it", 20*page - 1, 2, Read, nil, ErrUnmapped},
		{"to the top", top, page, Write, []place{{top, 0, page}}, nil},
		{"last byte", ^uint64(0), 1, Write, []place{{top, page - 1, 1}}, nil},
		{"round the top", ^uint64(0), 2, Write, nil, ErrUnmapped},
		{"everything", 0, ^uint64(0), Read, nil, ErrUnmapped},
	} {
		t.Run(c.name, func(t *testing.T) {
			first := Segment{Off: 42}
			got, err := s.Translate([]Segment{first}, c.iova, c.n, c.access)
			testkit.ErrorIs(t, err, c.err, "error")
			if len(got) != len(c.want)+1 || got[0] != first {
				t.Fatalf("got %v", got)
			}
			for i, w := range c.want {
				if g := got[i+1]; g.Region.IOVA() != w.iova || g.Off != w.off || uint64(g.Len) != w.n {
					t.Errorf("segment %d: %#x + %#x, %d bytes; want %v", i, g.Region.IOVA(), g.Off, g.Len, w)
				}
			}
			if c.access == Read && c.n <= 64*page {
				var want []byte
				for _, g := range got[1:] {
					want = append(want, g.Region.mem[g.Off:g.Off+uint64(g.Len)]...)
				}
				b := make([]byte, c.n)
				if rerr := s.ReadAt(b, c.iova); !errors.Is(rerr, c.err) || err == nil && !bytes.Equal(b, want) {
					t.Errorf("ReadAt: %v, or other bytes", rerr)
				}
			}
			var ae *AddrError
			if err != nil && (!errors.As(err, &ae) || ae.Error() == "") {
				t.Errorf("no AddrError: %v", err)
			}
		})
	}
}

// With an IOTLB, a miss is ErrMiss and names the first missing address; without one it is ErrUnmapped.
func TestMissIsAnAnswerOfItsOwn(t *testing.T) {
	s := guestSpace(t)
	fd := memfd(t, 4*page)
	for name, use := range map[string]func() error{
		"Translate": func() error { _, err := s.Translate(nil, page+8, 2*page, Read); return err },
		"ReadAt":    func() error { return s.ReadAt(make([]byte, 2*page), page+8) },
		"Pin": func() error {
			p, err := s.Pin(3*page+8, 8)
			if err == nil {
				p.Close()
			}
			return err
		},
	} {
		var filled []uint64
		s.SetIOTLB(true)
		err := use()
		for ; errors.Is(err, ErrMiss) && !errors.Is(err, ErrUnmapped); err = use() {
			var miss *AddrError
			if !errors.As(err, &miss) || miss.IOVA+miss.Len > 4*page {
				t.Fatalf("%s: %v", name, err)
			}
			filled = append(filled, miss.IOVA)
			add(t, s, Map{IOVA: miss.IOVA &^ (page - 1), Size: page, FD: fd})
		}
		want := []uint64{page + 8, 2 * page, 3 * page}
		if name == "Pin" {
			want = []uint64{3*page + 8}
		}
		if err != nil || !slices.Equal(filled, want) {
			t.Errorf("%s: missed at %#x, want %#x; %v", name, filled, want, err)
		}
		testkit.OK(t, s.Close())
		s.SetIOTLB(false)
		if err := use(); !errors.Is(err, ErrUnmapped) || errors.Is(err, ErrMiss) {
			t.Errorf("%s without an IOTLB: %v", name, err)
		}
	}
	s.SetIOTLB(true)
	add(t, s, Map{Size: page, FD: fd, ReadOnly: true})
	if _, err := s.Translate(nil, 0, 1, Write); !errors.Is(err, ErrAccess) || errors.Is(err, ErrMiss) {
		t.Errorf("write to a read-only entry: %v", err)
	}
}

// Invariant: virtq: A chain has at most 1024 descriptors and 4096 segments, and a long list is
// freed when a short chain follows.
func TestTranslateMaxStopsAtTheLimit(t *testing.T) {
	s := guestSpace(t)
	const regions = 2000
	fd := memfd(t, regions*page)
	maps := make([]Map, regions)
	for i := range uint64(regions) { // the file's pages are in the reverse order of the addresses
		maps[i] = Map{IOVA: i * page, Size: page, FD: fd, FileOffset: (regions - 1 - i) * page}
	}
	testkit.OK(t, s.Replace(maps))
	big := memfd(t, 3*maxSegment) // a sparse file
	add(t, s, Map{IOVA: 1 << 40, Size: 3 * maxSegment, FD: big})
	first := Segment{Off: 42}
	for _, c := range []struct {
		name    string
		iova, n uint64
		limit   int
		want    int // segments, first included; 0 means ErrScattered
	}{
		{"one", 0, page, 2, 2},
		{"no room", 0, 1, 1, 0},
		{"nothing needs none", 0, 0, 1, 1},
		{"exactly as many", 5, 9 * page, 11, 11},
		{"one too many", 5, 9 * page, 10, 0},
		{"all", 0, regions * page, regions + 1, regions + 1},
		{"all but one", 0, regions * page, regions, 0},
		{"pieces of a long region", 1 << 40, 2*maxSegment + 1, 4, 4},
		{"too many pieces of a long region", 1 << 40, 2*maxSegment + 1, 3, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := s.TranslateMax([]Segment{first}, c.limit, c.iova, c.n, Read)
			if c.want == 0 {
				var scattered *AddrError
				if !errors.Is(err, ErrScattered) || !errors.As(err, &scattered) {
					t.Fatalf("error %v", err)
				}
				longest := uint64(page)
				if c.iova >= 1<<40 {
					longest = maxSegment
				}
				if done := scattered.IOVA - c.iova; done > uint64(c.limit)*longest {
					t.Errorf("walked %#x bytes on for %d segments", done, c.limit)
				}
				if len(got) != 1 || got[0] != first {
					t.Errorf("got %v", got)
				}
				return
			}
			if err != nil || len(got) != c.want || Len(got[1:]) != c.n {
				t.Errorf("%d segments, %#x bytes, %v", len(got), Len(got[1:]), err)
			}
		})
	}
}

func TestSpaceRefuses(t *testing.T) {
	s := guestSpace(t)
	files := s.files
	fd := memfd(t, 8*page)
	add(t, s, Map{IOVA: 10 * page, Size: 4 * page, FD: fd})
	gen := s.Generation()
	for _, c := range []struct {
		name string
		m    Map
		err  error
	}{
		{"the same", Map{IOVA: 10 * page, Size: 4 * page, FD: fd}, unix.EEXIST},
		{"over the start", Map{IOVA: 9 * page, Size: page + 1, FD: fd}, unix.EEXIST},
		{"over the end", Map{IOVA: 14*page - 1, Size: page, FD: fd}, unix.EEXIST},
		{"inside", Map{IOVA: 11 * page, Size: page, FD: fd}, unix.EEXIST},
		{"around", Map{IOVA: 9 * page, Size: 8 * page, FD: fd}, unix.EEXIST},
		{"around, without access", Map{IOVA: 1, Size: ^uint64(0), NoAccess: true}, unix.EEXIST},
		{"empty", Map{IOVA: 0, Size: 0, FD: fd}, unix.EINVAL},
		{"past the top", Map{IOVA: top, Size: page + 1, FD: fd}, unix.EINVAL},
		{"offset past the top", Map{IOVA: 0, Size: page, FD: fd, FileOffset: top + 1}, unix.EINVAL},
		{"past the file", Map{IOVA: 0, Size: page, FD: fd, FileOffset: 8*page - 1}, ErrBadFile},
		{"no file", Map{IOVA: 0, Size: page, FD: -1}, ErrBadFile},
	} {
		t.Run(c.name, func(t *testing.T) {
			testkit.ErrorIs(t, s.Add(c.m), c.err, "Add")
			if c.err != unix.EEXIST {
				testkit.ErrorIs(t, s.Replace([]Map{{Size: page, IOVA: 100 * page, FD: fd}, c.m}), c.err, "Replace")
			}
		})
	}
	testkit.ErrorIs(t, s.Replace([]Map{{IOVA: page, Size: 2 * page, FD: fd}, {IOVA: 0, Size: page + 1, FD: fd}}),
		unix.EEXIST, "Replace with an overlap")
	testkit.ErrorIs(t, s.Replace(make([]Map, MaxRegions+1)), unix.ENOSPC, "Replace with too many")
	for _, r := range [][2]uint64{{10 * page, 3 * page}, {11 * page, page}, {9 * page, page}, {0, 0}, {14 * page, page}} {
		testkit.ErrorIs(t, s.Remove(r[0], r[1]), unix.ENOENT, "Remove [%#x, +%#x)", r[0], r[1])
	}
	if len(s.Regions()) != 1 || s.Generation() != gen {
		t.Fatalf("refusals changed the space: %v", s.Regions())
	}
	testkit.OK(t, s.Remove(10*page, 4*page))
	if files.Len() != 0 {
		t.Fatal("a reference leaked")
	}
}

func TestReplaceKeepsFilesMapped(t *testing.T) {
	s := guestSpace(t)
	files := s.files
	fd, other := memfd(t, 8*page), memfd(t, page)
	add(t, s, Map{Size: 8 * page, FD: fd})
	f := s.Regions()[0].File
	testkit.OK(t, s.Replace([]Map{{IOVA: 8 * page, Size: 8 * page, FD: fd}, {IOVA: 0, Size: page, FD: other}}))
	r := s.Regions()
	if len(r) != 2 || r[0].IOVA != 0 || r[1].File != f || !s.Has(f) || s.Has(nil) || files.Len() != 2 {
		t.Fatalf("after Replace: %+v", r)
	}
	if err := s.Close(); err != nil || files.Len() != 0 || s.Has(f) || len(s.Regions()) != 0 {
		t.Fatalf("after Close: %v, %d files", err, files.Len())
	}
	add(t, s, Map{Size: page, FD: other}) // a space can be used after Close
	s.Close()
}

func TestPinOutlivesItsRegion(t *testing.T) {
	s := guestSpace(t)
	files := s.files
	fd := memfd(t, 4*page)
	add(t, s, Map{IOVA: 10 * page, Size: page, FD: fd, FileOffset: page})
	add(t, s, Map{IOVA: 11 * page, Size: page, FD: fd, FileOffset: 2 * page})
	add(t, s, Map{IOVA: 12 * page, Size: page, FD: fd, ReadOnly: true})
	add(t, s, Map{IOVA: 13 * page, Size: page, NoAccess: true})
	for _, c := range []struct {
		iova, n uint64
		err     error
	}{
		{0, 1, ErrUnmapped}, {14 * page, 1, ErrUnmapped}, {11*page - 1, 2, ErrBounds}, {10 * page, ^uint64(0), ErrBounds},
		{12 * page, 1, ErrAccess}, {13 * page, 1, ErrAccess},
	} {
		if p, err := s.Pin(c.iova, c.n); !errors.Is(err, c.err) || p != nil {
			t.Errorf("Pin(%#x, %#x): %v", c.iova, c.n, err)
		}
	}
	p, err := s.Pin(10*page+16, 64)
	testkit.OK(t, err)
	if p.File() != s.Regions()[0].File || len(p.Bytes()) != 64 {
		t.Fatalf("pin: %d bytes", len(p.Bytes()))
	}
	s.Close()
	copy(p.Bytes(), "ring")
	got := make([]byte, 4)
	if _, err := unix.Pread(fd, got, page+16); err != nil || string(got) != "ring" {
		t.Fatalf("file has %q: %v", got, err)
	}
	p.Close()
	p.Close()
	if files.Len() != 0 {
		t.Fatal("still mapped")
	}
}

func TestSpaceHoldsManyRegions(t *testing.T) {
	s := guestSpace(t)
	fd := memfd(t, page)
	maps := make([]Map, MaxRegions)
	for i := range maps {
		maps[i] = Map{IOVA: uint64(i) * 2 * page, Size: page, FD: fd}
	}
	testkit.OK(t, s.Replace(maps))
	testkit.ErrorIs(t, s.Add(Map{IOVA: page, Size: page, FD: fd}), unix.ENOSPC, "one more")
	for _, i := range []uint64{0, 1, MaxRegions / 2, MaxRegions - 1} {
		if segs, err := s.Translate(nil, i*2*page+7, 9, Write); err != nil || segs[0].Region.IOVA() != i*2*page {
			t.Fatalf("region %d: %v", i, err)
		}
	}
	s.Close()
}

func TestTranslateCutsSegmentsOfMoreThan32Bits(t *testing.T) {
	s := guestSpace(t)
	const size = 5<<30 + page // of a sparse file
	add(t, s, Map{IOVA: 1 << 40, Size: size, FD: memfd(t, size)})
	segs, err := s.Translate(nil, 1<<40+1, size-1, Read)
	if err != nil || Len(segs) != size-1 {
		t.Fatalf("%d bytes: %v", Len(segs), err)
	}
	off := uint64(1)
	for _, g := range segs {
		if g.Off != off || g.Len == 0 {
			t.Fatalf("segments %v", segs)
		}
		off += uint64(g.Len)
	}
	s.Close()
}

// Invariant: dma: A pin of a region keeps its file mapped, lies in the region, and needs a region
// of a file that may be written.
func TestPinOfARegion(t *testing.T) {
	files := NewFiles()
	fd := testkit.Must(unix.MemfdCreate("pin", unix.MFD_CLOEXEC))(t)
	testkit.OK(t, unix.Ftruncate(fd, 4*page))
	f := testkit.Must(files.Open(fd, 4*page))(t)
	testkit.OK(t, unix.Close(fd))
	r := testkit.Must(f.Region(page, 2*page))(t)
	for _, c := range []struct{ off, n uint64 }{{0, 2*page + 1}, {2*page + 1, 0}, {page, ^uint64(0)}, {^uint64(0), 2}} {
		testkit.ErrorIs(t, testkit.Err(r.Pin(c.off, c.n)), ErrBounds)
	}
	testkit.ErrorIs(t, testkit.Err(NewBuffer(make([]byte, page), Host).Pin(0, 1)), ErrAccess)
	p := testkit.Must(r.Pin(page, page))(t)
	f.mem[2*page] = 7
	f.Close()
	testkit.Equal(t, "files", files.Len(), 1)
	testkit.Equal(t, "its bytes", len(p.Bytes()), page)
	testkit.Equal(t, "its byte", p.Bytes()[0], 7)
	p.Close()
	testkit.Equal(t, "files", files.Len(), 0)
	testkit.ErrorIs(t, testkit.Err(r.Pin(0, page)), ErrClosed)
}
