package collective

import (
	"context"

	"vnic.dev/vnic/devmem"
)

// ReduceScatter adds like AllReduce, but each rank ends with one chunk of sums: its Part of the
// count elements. The other elements of its buffer are sums of only some ranks. Chunk c is added in
// the order of ranks c+1, c+2, ..., c. Errors are AllReduce's.
func (r *Ring) ReduceScatter(ctx context.Context, t devmem.Type, b devmem.Buffer, off, count uint64) error {
	n := r.c.Ranks - 1
	return r.begin("reduce-scatter", t, b, off, count).around(r.c.Rank-1, n, n).do(ctx)
}

// AllGather copies each rank's Part of count elements to all other ranks: when it returns
// without an error, this rank's buffer has all elements. It uses no scratch memory. Errors are
// AllReduce's without ENOSPC.
func (r *Ring) AllGather(ctx context.Context, t devmem.Type, b devmem.Buffer, off, count uint64) error {
	return r.begin("all-gather", t, b, off, count).around(r.c.Rank, r.c.Ranks-1, 0).do(ctx)
}

// Part returns a rank's part of count elements: its first element, and how many elements it has.
// The parts of all ranks are all elements. The first count%ranks ranks have one element more than
// the others. rank must be in [0, ranks).
func Part(rank, ranks int, count uint64) (first, n uint64) {
	each, more := count/uint64(ranks), count%uint64(ranks)
	first, n = each*uint64(rank)+min(uint64(rank), more), each
	if uint64(rank) < more {
		n++
	}
	return first, n
}
