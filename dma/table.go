package dma

import (
	"fmt"
	"slices"

	"golang.org/x/sys/unix"
)

// maxNode is the largest number of children of a node, and of regions in a leaf, except a root that is a leaf;
// nodes below the root have at least half as many.
const maxNode = 64

// maxFlat is the most regions that newTable puts in a root that is a leaf: a search in one leaf is faster.
const maxFlat = 512

// table is a B+ tree of regions, sorted and disjoint, or a node of one. A node never changes: with and without make new
// nodes, and a new tree shares the others with the old tree.
type table struct {
	starts  []uint64  // address of each region, or of the first region below each child
	regions []*Region // in a leaf
	kids    []*table  // in an inner node: its children
}

// newTable returns a tree of the regions, which must be sorted and disjoint. It keeps the slice.
func newTable(regions []*Region) *table {
	if len(regions) <= maxFlat {
		return leafOf(regions)
	}
	var level []*table
	for part := range evenly(len(regions)) {
		level = append(level, leafOf(regions[part.from:part.to]))
	}
	for len(level) > maxNode {
		var above []*table
		for part := range evenly(len(level)) {
			above = append(above, nodeOf(level[part.from:part.to]))
		}
		level = above
	}
	return nodeOf(level)
}

type part struct{ from, to int }

// evenly yields nearly equal parts of n items, as few as possible with at most maxNode items each.
func evenly(n int) func(yield func(part) bool) {
	return func(yield func(part) bool) {
		nodes := (n + maxNode - 1) / maxNode
		for i := range nodes {
			if !yield(part{n * i / nodes, n * (i + 1) / nodes}) {
				return
			}
		}
	}
}

func leafOf(regions []*Region) *table {
	t := &table{starts: make([]uint64, len(regions)), regions: regions}
	for i, r := range regions {
		t.starts[i] = r.iova
	}
	return t
}

func nodeOf(kids []*table) *table {
	t := &table{starts: make([]uint64, len(kids)), kids: kids}
	for i, k := range kids {
		t.starts[i] = k.starts[0]
	}
	return t
}

// leaf returns the leaf with the last region that begins at or before iova; if there is none, the first leaf.
func (t *table) leaf(iova uint64) *table {
	for t.kids != nil {
		t = t.kids[max(t.find(iova), 0)]
	}
	return t
}

// follow returns the leaf of the tree t that has the last region that begins at or before iova, and its index
// in the leaf; a nil leaf means that the translation cannot go on. from is t when the translation begins, and
// afterwards the leaf whose last region the translation has passed.
//
//go:noinline
func (t *table) follow(from *table, iova uint64) (leaf *table, next int) {
	if t.kids == nil || from != t && iova == 0 { // iova 0: it has wrapped past the last address
		return nil, 0
	}
	leaf = t.leaf(iova)
	if next = leaf.find(iova); next < 0 {
		return nil, 0
	}
	return leaf, next
}

// find returns the index of the last start at or before iova, or -1.
func (t *table) find(iova uint64) int {
	lo, hi := 0, len(t.starts)
	for lo < hi {
		if mid := int(uint(lo+hi) >> 1); t.starts[mid] <= iova {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	return lo - 1
}

// lastBefore returns the last region that begins at or before iova, or nil.
func (t *table) lastBefore(iova uint64) *Region {
	t = t.leaf(iova)
	if i := t.find(iova); i >= 0 {
		return t.regions[i]
	}
	return nil
}

// walk calls f with the regions that begin at iova or later, by address, until f returns false; then walk does, too.
func (t *table) walk(iova uint64, f func(*Region) bool) bool {
	i := t.find(iova)
	if t.kids != nil {
		for _, k := range t.kids[max(i, 0):] {
			if !k.walk(iova, f) {
				return false
			}
		}
		return true
	}
	if i < 0 || t.starts[i] < iova {
		i++
	}
	for _, r := range t.regions[i:] {
		if !f(r) {
			return false
		}
	}
	return true
}

func (t *table) all() (regions []*Region) {
	t.walk(0, func(r *Region) bool {
		regions = append(regions, r)
		return true
	})
	return regions
}

// within lists the regions that lie in [iova, iova+size); EINVAL: the range cuts a region or is no valid range.
func (t *table) within(iova, size uint64) (regions []*Region, err error) {
	if size == 0 || size-1 > ^iova {
		return nil, fmt.Errorf("[%#x, +%#x): %w", iova, size, unix.EINVAL)
	}
	last := iova + (size - 1)
	var cut *Region
	if r := t.lastBefore(iova); r != nil && r.iova < iova && iova-r.iova < r.Size() {
		cut = r
	}
	t.walk(iova, func(r *Region) bool {
		if cut != nil || r.iova > last {
			return false
		}
		if last-r.iova < r.Size()-1 {
			cut = r
		}
		regions = append(regions, r)
		return true
	})
	if cut != nil {
		return nil, fmt.Errorf("[%#x, +%#x) cuts %v: %w", iova, size, cut, unix.EINVAL)
	}
	return regions, nil
}

func (t *table) with(r *Region) (*table, error) {
	if err := t.free(r); err != nil {
		return nil, err
	}
	if t.kids == nil {
		i := t.find(r.iova) + 1
		return newTable(spliced(t.regions, i, i, r)), nil
	}
	halves := t.insert(r)
	if len(halves) > 1 {
		return nodeOf(halves), nil
	}
	return halves[0], nil
}

// free returns EEXIST if r overlaps a region of the tree.
func (t *table) free(r *Region) error {
	clash := t.lastBefore(r.iova)
	if clash == nil || r.iova-clash.iova >= clash.Size() {
		clash = nil
		t.walk(r.iova, func(next *Region) bool {
			if next.iova-r.iova < r.Size() {
				clash = next
			}
			return false
		})
	}
	if clash != nil {
		return fmt.Errorf("%v: overlaps %v: %w", r, clash, unix.EEXIST)
	}
	return nil
}

// insert returns the node with r added, as two nodes if one would be too long.
func (t *table) insert(r *Region) []*table {
	i := t.find(r.iova)
	if t.kids == nil {
		return leafOf(spliced(t.regions, i+1, i+1, r)).halves()
	}
	i = max(i, 0)
	return nodeOf(spliced(t.kids, i, i+1, t.kids[i].insert(r)...)).halves()
}

// without returns the tree without r, which must be in it.
func (t *table) without(r *Region) *table {
	t = t.remove(r)
	for len(t.kids) == 1 {
		t = t.kids[0]
	}
	return t
}

// rebuildFrom is a limit of withoutAll: if it removes more than one in rebuildFrom of the regions, it builds the tree
// anew, which then allocates less.
const rebuildFrom = 256

// withoutAll returns the tree without the regions in gone, which follow each other in the tree and are in the order of
// their addresses; count is the number of regions in the tree.
func (t *table) withoutAll(gone []*Region, count int) *table {
	if len(gone) <= count/rebuildFrom {
		for _, r := range gone {
			t = t.without(r)
		}
		return t
	}
	first, last := gone[0].iova, gone[len(gone)-1].iova
	stay := make([]*Region, 0, count-len(gone))
	t.walk(0, func(r *Region) bool {
		if r.iova < first || r.iova > last {
			stay = append(stay, r)
		}
		return true
	})
	return newTable(stay)
}

// remove returns the node without r, which is below it. The new node may be shorter than maxNode/2.
func (t *table) remove(r *Region) *table {
	i := t.find(r.iova)
	if t.kids == nil {
		return leafOf(spliced(t.regions, i, i+1))
	}
	kid := t.kids[i].remove(r)
	if len(kid.starts) >= maxNode/2 {
		return nodeOf(spliced(t.kids, i, i+1, kid))
	}
	// The child is too short: merge it with a neighbour.
	if i == 0 {
		return nodeOf(spliced(t.kids, 0, 2, join2(kid, t.kids[1]).halves()...))
	}
	return nodeOf(spliced(t.kids, i-1, i+1, join2(t.kids[i-1], kid).halves()...))
}

func join2(a, b *table) *table {
	if a.kids == nil {
		return leafOf(slices.Concat(a.regions, b.regions))
	}
	return nodeOf(slices.Concat(a.kids, b.kids))
}

func (t *table) halves() []*table {
	n := len(t.starts)
	switch {
	case n <= maxNode:
		return []*table{t}
	case t.kids == nil:
		return []*table{leafOf(slices.Clone(t.regions[:n/2])), leafOf(slices.Clone(t.regions[n/2:]))}
	}
	return []*table{nodeOf(slices.Clone(t.kids[:n/2])), nodeOf(slices.Clone(t.kids[n/2:]))}
}

// spliced returns a copy of s with the items of what in place of s[i:j].
func spliced[T any](s []T, i, j int, what ...T) []T {
	return slices.Concat(s[:i], what, s[j:])
}
