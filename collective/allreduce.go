package collective

import (
	"context"

	"vnic.dev/vnic/devmem"
)

// AllReduce adds up count elements of all ranks' buffers, from offset off of each on: when it returns, this rank's has
// the sums. Chunk c of the n that the elements are cut in is added in the order of ranks c, c+1, ..., c-1.
//
// Errors: EINVAL (offset, type), EFAULT (outside of the buffer), ENOSPC (a chunk is longer than Scratch) before
// anything is sent; *Error for a neighbour's, after which the Ring is closed and the buffer has any bytes.
func (r *Ring) AllReduce(ctx context.Context, t devmem.Type, b devmem.Buffer, off, count uint64) error {
	o, err := r.reduces("all-reduce", t, b, off, count)
	if err != nil {
		return err
	}
	o.steps = 2 * (r.c.Ranks - 1)
	return r.do(ctx, o, func(ctx context.Context) error {
		if err := o.reduce(ctx, r.c.Rank+1); err != nil {
			return err
		}
		return o.gather(ctx, r.c.Rank+1)
	})
}
