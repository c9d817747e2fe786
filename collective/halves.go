package collective

import (
	"context"

	"vnic.dev/vnic/devmem"
)

// ReduceScatter adds up as AllReduce does, but each rank ends with one chunk: of count elements of its buffer those
// that Part says are sums, and the others are sums of some ranks. Chunk c is added in the order of ranks c+1, c+2,
// ..., c. Errors are AllReduce's.
func (r *Ring) ReduceScatter(ctx context.Context, t devmem.Type, b devmem.Buffer, off, count uint64) error {
	o, err := r.reduces("reduce-scatter", t, b, off, count)
	if err != nil {
		return err
	}
	o.steps = r.c.Ranks - 1
	return r.do(ctx, o, func(ctx context.Context) error { return o.reduce(ctx, r.c.Rank) })
}

// AllGather takes each rank's part of count elements, as Part says, to all others: when it returns, this rank's buffer
// has all of them. It needs no scratch memory. Errors are AllReduce's, but ENOSPC.
func (r *Ring) AllGather(ctx context.Context, t devmem.Type, b devmem.Buffer, off, count uint64) error {
	o, err := r.begin("all-gather", t, b, off, count)
	if err != nil {
		return err
	}
	o.steps = r.c.Ranks - 1
	return r.do(ctx, o, func(ctx context.Context) error { return o.gather(ctx, r.c.Rank) })
}

// Part is a rank's part of count elements, which all ranks' together are: its first element, and how many they are. The
// first count%ranks ranks have one more than the others. The ranks are more than none, and rank is one of them.
func Part(rank, ranks int, count uint64) (first, n uint64) {
	each, more := count/uint64(ranks), count%uint64(ranks)
	first, n = each*uint64(rank)+min(uint64(rank), more), each
	if uint64(rank) < more {
		n++
	}
	return first, n
}
