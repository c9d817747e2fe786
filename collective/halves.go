package collective

import (
	"context"

	"vnic.dev/vnic/devmem"
)

// ReduceScatter is AllReduce, but this rank gets only the sums of its Part of the elements; the others of the count
// elements in its buffer are undefined.
func (r *Ring) ReduceScatter(ctx context.Context, t devmem.Type, b devmem.Buffer, off, count uint64) error {
	n := r.c.Ranks - 1
	return r.begin("reduce-scatter", t, b, off, count).around(r.c.Rank-1, n, n).do(ctx)
}

// AllGather copies each rank's Part of count elements to the other ranks: then this rank's buffer has all
// elements. It uses no scratch memory. Errors are AllReduce's without ENOSPC.
func (r *Ring) AllGather(ctx context.Context, t devmem.Type, b devmem.Buffer, off, count uint64) error {
	return r.begin("all-gather", t, b, off, count).around(r.c.Rank, r.c.Ranks-1, 0).do(ctx)
}

// Part divides count elements among ranks: it returns the index of a rank's first element, and how many the rank has.
// rank must be in [0, ranks).
func Part(rank, ranks int, count uint64) (first, n uint64) {
	each, more := count/uint64(ranks), count%uint64(ranks)
	first, n = each*uint64(rank)+min(uint64(rank), more), each
	if uint64(rank) < more {
		n++
	}
	return first, n
}
