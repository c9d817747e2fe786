package dma

import (
	"errors"
	"runtime"
	"slices"
	"testing"
	"testing/synctest"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"
	"vnic.dev/vnic/internal/testkit"
)

// valid checks the lengths, starts and heights of the nodes of t, and returns the height of t. root means that t is a
// root.
func (t *table) valid(tt interface{ Fatalf(string, ...any) }, root bool) int {
	n := len(t.starts)
	most := maxNode
	if root && t.kids == nil {
		most = maxFlat
	}
	if n > most || !root && n < maxNode/2 || t.kids != nil && n < 2 {
		tt.Fatalf("node of %d, root: %t", n, root)
	}
	if !slices.IsSorted(t.starts) || max(len(t.regions), len(t.kids)) != n {
		tt.Fatalf("starts %v of %d regions, %d children", t.starts, len(t.regions), len(t.kids))
	}
	height := 0
	for i, k := range t.kids {
		h := k.valid(tt, false)
		if i > 0 && h != height || k.starts[0] != t.starts[i] {
			tt.Fatalf("child %d of height %d, %d, starts at %#x, not %#x", i, h, height, k.starts[0], t.starts[i])
		}
		height = h
	}
	for i, r := range t.regions {
		if r.iova != t.starts[i] {
			tt.Fatalf("region %d at %#x, not %#x", i, r.iova, t.starts[i])
		}
	}
	return height + 1
}

// After each change a tree has the same regions as a list, and the tree before the change still has its own.
func TestTableAgainstAList(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var model []*Region
		for range rapid.SampledFrom([]int{0, 1, 63, 64, 65, 300, 511, 512, 513, 5000}).Draw(t, "regions") {
			model = append(model, &Region{iova: uint64(len(model)) * 4, size: 3, noAccess: true})
		}
		tree := newTable(slices.Clone(model))
		for range rapid.IntRange(1, 12).Draw(t, "changes") {
			old, was := tree, slices.Clone(model)
			from := rapid.Uint64Range(0, 5000).Draw(t, "at")
			n := rapid.SampledFrom([]uint64{1, 2, 40, 400}).Draw(t, "how many")
			remove := rapid.Bool().Draw(t, "remove")
			if rapid.IntRange(0, 3).Draw(t, "a range") == 0 {
				if gone, err := tree.within(from*4, n*4); err == nil && len(gone) > 0 {
					tree = tree.withoutAll(gone, len(model))
					i := slices.Index(model, gone[0])
					model = slices.Delete(model, i, i+len(gone))
				}
				n = 0
			}
			for k := range n {
				r := &Region{iova: (from + k*7%n) * 4, size: 1 + k%4, noAccess: true}
				i, there := slices.BinarySearchFunc(model, r, (*Region).compare)
				switch {
				case remove && there:
					tree = tree.without(model[i])
					model = slices.Delete(model, i, i+1)
				case !remove:
					next, err := tree.with(r)
					if there != errors.Is(err, unix.EEXIST) {
						t.Fatalf("add %v: %v, there: %t", r, err, there)
					}
					if !there {
						tree, model = next, slices.Insert(model, i, r)
					}
				}
			}
			tree.valid(t, true)
			if !slices.Equal(tree.all(), model) || !slices.Equal(old.all(), was) {
				t.Fatal("other regions than the list, or an old tree has changed")
			}
			for range 20 {
				iova := rapid.Uint64Range(0, 4*5500).Draw(t, "iova")
				var want *Region
				for _, r := range model {
					if r.iova <= iova {
						want = r
					}
				}
				if got := tree.lastBefore(iova); got != want {
					t.Fatalf("at %#x: %v, want %v", iova, got, want)
				}
				size := rapid.Uint64Range(0, 4000).Draw(t, "size")
				got, err := tree.within(iova, size)
				var in []*Region
				cut := size == 0
				for _, r := range model {
					switch end := r.iova + r.size; {
					case end <= iova || r.iova >= iova+size:
					case r.iova < iova || end > iova+size:
						cut = true
					default:
						in = append(in, r)
					}
				}
				if cut != errors.Is(err, unix.EINVAL) || !cut && !slices.Equal(got, in) {
					t.Fatalf("within [%#x, +%#x): %v, %v; want %v, cut: %t", iova, size, got, err, in, cut)
				}
			}
		}
	})
}

// A tree of three levels has one level when all its regions are removed.
func TestTableShrinks(t *testing.T) {
	for _, first := range []bool{true, false} {
		var model []*Region
		for i := range uint64(maxNode*maxNode + 1) { // enough for three levels
			model = append(model, &Region{iova: 4 * i, size: 3, noAccess: true})
		}
		tree := newTable(slices.Clone(model))
		testkit.Equal(t, "levels", tree.valid(t, true), 3)
		for len(model) > 0 {
			i := len(model) - 1
			if first {
				i = 0
			}
			tree = tree.without(model[i])
			model = slices.Delete(model, i, i+1)
			if n := len(model); n%61 == 0 || n < maxNode {
				tree.valid(t, true)
				if !slices.Equal(tree.all(), model) {
					t.Fatalf("%d regions, want %d", len(tree.all()), n)
				}
			}
		}
		testkit.Equal(t, "levels of an empty one", tree.valid(t, true), 1)
	}
}

// A translation goes on in the next leaves, but does not wrap at the end of the addresses.
func TestTranslateAcrossLeaves(t *testing.T) {
	s := guestSpace(t)
	const regions = maxFlat + 5*maxNode
	fd := memfd(t, page)
	for i := range uint64(regions) {
		add(t, s, Map{IOVA: 1<<64 - regions*page + i*page, Size: page, FD: fd}) // they end at 2^64
	}
	testkit.ErrorIs(t, testkit.Err(s.Translate(nil, page, 1, Read)), ErrUnmapped, "before the first region")
	add(t, s, Map{Size: page, FD: fd}) // a wrapped translation would continue here
	segs, err := s.Translate(nil, 1<<64-regions*page+1, regions*page-1, Write)
	if err != nil || len(segs) != regions || Len(segs) != regions*page-1 {
		t.Fatalf("%d segments, %d bytes, %v", len(segs), Len(segs), err)
	}
	testkit.ErrorIs(t, testkit.Err(s.Translate(nil, 1<<64-page, page+1, Write)), ErrUnmapped, "round the top")
}

// Adding or removing one of 65,535 regions allocates at most 4 KiB on average, removing a range of nearly all at most 4
// MiB; the regions and their table occupy at most 16 MiB.
func TestOneRegionOfManyIsCheap(t *testing.T) {
	leakFree(t)
	const (
		each = 4 << 10  // bytes per change, on average; a table of 65,535 addresses and pointers has 1 MiB
		all  = 16 << 20 // bytes that stay allocated for all regions
		rest = 4 << 20  // bytes, for removing the remaining regions by one RemoveRange
	)
	fd := memfd(t, page)
	s := NewSpace("guest", NewFiles())
	defer s.Close()
	var before, added, after, removed, none runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	for i := range uint64(MaxRegions) {
		add(t, s, Map{IOVA: i * 7919 % MaxRegions * page, Size: page, FD: fd})
	}
	runtime.ReadMemStats(&added)
	runtime.GC()
	runtime.ReadMemStats(&after)
	const some = 1000
	for i := range uint64(some) {
		testkit.OK(t, s.Remove(i*7919%MaxRegions*page, page))
	}
	runtime.ReadMemStats(&removed)
	testkit.OK(t, s.RemoveRange(0, 1<<63))
	runtime.ReadMemStats(&none)
	if got := none.TotalAlloc - removed.TotalAlloc; got > rest {
		t.Errorf("removing a range of %d regions allocates %d bytes", MaxRegions-some, got)
	}
	if got := (added.TotalAlloc - before.TotalAlloc) / MaxRegions; got > each {
		t.Errorf("adding one of %d regions allocates %d bytes", MaxRegions, got)
	}
	if got := (removed.TotalAlloc - after.TotalAlloc) / some; got > each {
		t.Errorf("removing one of %d regions allocates %d bytes", MaxRegions, got)
	}
	if got := int64(after.HeapAlloc) - int64(before.HeapAlloc); got > all {
		t.Errorf("%d regions hold %d bytes", MaxRegions, got)
	}
	t.Logf("add %d, remove %d, held %d", (added.TotalAlloc-before.TotalAlloc)/MaxRegions,
		(removed.TotalAlloc-after.TotalAlloc)/some, after.HeapAlloc-before.HeapAlloc)
}

// Adding or removing a region of this tree makes at most two new nodes for each level.
func TestChangeCopiesAFewNodes(t *testing.T) {
	const n = 50_000
	regions := make([]*Region, n)
	for i := range regions {
		regions[i] = &Region{iova: uint64(i) * 4, size: 2, noAccess: true}
	}
	tree := newTable(slices.Clone(regions))
	height := tree.valid(t, true)
	most := 0
	check := func(next *table) {
		old := map[*table]bool{}
		tree.nodes(func(k *table) { old[k] = true })
		made := 0
		next.nodes(func(k *table) {
			if !old[k] {
				made++
			}
		})
		most = max(most, made)
		tree = next
	}
	for i := range 200 {
		check(testkit.Must(tree.with(&Region{iova: uint64(20_000+i)*4 + 2, size: 1, noAccess: true}))(t))
	}
	for i := range 200 {
		check(tree.without(regions[30_000+i]))
	}
	tree.valid(t, true)
	if most > 2*height {
		t.Errorf("a change of a tree of %d levels made %d nodes", height, most)
	}
	if most <= height {
		t.Errorf("no node was cut: %d were made at most", most)
	}
}

func (t *table) nodes(f func(*table)) {
	f(t)
	for _, k := range t.kids {
		k.nodes(f)
	}
}

// RemoveRange, Replace and Close wait once, and not at all if no worker is inside.
func TestOneWaitForManyRegions(t *testing.T) {
	leakFree(t)
	fd := memfd(t, page)
	const regions = 300
	maps := make([]Map, regions)
	for i := range maps {
		maps[i] = Map{IOVA: uint64(i) * page, Size: page, FD: fd}
	}
	for _, c := range []struct {
		name   string
		change func(*Space) error
		left   int
	}{
		{"RemoveRange", func(s *Space) error { return s.RemoveRange(page, 200*page) }, regions - 200},
		{"RemoveRange of all", func(s *Space) error { return s.RemoveRange(0, 1<<63) }, 0},
		{"Replace", func(s *Space) error { return s.Replace(maps[:7]) }, 7},
		{"Close", func(s *Space) error { return s.Close() }, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := NewSpace("guest", NewFiles())
				for _, inside := range []bool{false, true} {
					testkit.OK(t, s.Replace(maps))
					before, want := s.Waits(), uint64(0)
					if inside {
						token := s.Enter()
						done := pending(t, c.name, func() error { return c.change(s) })
						s.Leave(token)
						if !isDone(done) {
							t.Fatal("waits for nobody")
						}
						want = 1
					} else if err := c.change(s); err != nil {
						t.Fatal(err)
					}
					if got := s.Waits() - before; got != want || len(s.Regions()) != c.left {
						t.Errorf("worker inside: %t: %d waits, want %d; %d regions", inside, got, want, len(s.Regions()))
					}
				}
				if err := s.Close(); err != nil || s.Waits() != 1 {
					t.Errorf("%d waits, %v", s.Waits(), err)
				}
			})
		})
	}
}

func TestRemoveRangeRefuses(t *testing.T) {
	s := guestSpace(t)
	fd := memfd(t, 2*page)
	add(t, s, Map{IOVA: 2 * page, Size: 2 * page, FD: fd})
	add(t, s, Map{IOVA: top, Size: page, FD: fd})
	gen := s.Generation()
	for _, c := range []struct {
		iova, size uint64
		err        error
	}{
		{0, 0, unix.EINVAL}, {top, page + 1, unix.EINVAL}, {1, ^uint64(0), nil}, {0, page, nil}, {0, 2 * page, nil},
		{0, 2*page + 1, unix.EINVAL}, {0, 3 * page, unix.EINVAL}, {3 * page, page, unix.EINVAL}, {2*page + 1, 1, unix.EINVAL},
		{3 * page, 5 * page, unix.EINVAL}, {top, page - 1, unix.EINVAL}, {top + 1, page - 1, unix.EINVAL},
		{4 * page, page, nil},
	} {
		in, err := s.RegionsIn(c.iova, c.size)
		if !errors.Is(err, c.err) || c.err == nil && err != nil {
			t.Errorf("RegionsIn(%#x, %#x): %v, want %v", c.iova, c.size, err, c.err)
		}
		if c.size == ^uint64(0) {
			if len(in) != 2 {
				t.Errorf("everything: %v", in)
			}
			continue
		}
		if err := s.RemoveRange(c.iova, c.size); !errors.Is(err, c.err) || c.err == nil && err != nil {
			t.Errorf("RemoveRange(%#x, %#x): %v, want %v", c.iova, c.size, err, c.err)
		}
	}
	if s.Generation() != gen || len(s.Regions()) != 2 {
		t.Errorf("refusals, or nothing removed, changed the space: %v", s.Regions())
	}
	if err := s.RemoveRange(page, ^uint64(0)-page+1); err != nil || len(s.Regions()) != 0 {
		t.Errorf("everything: %v, %v", s.Regions(), err)
	}
}
