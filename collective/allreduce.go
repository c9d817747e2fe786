package collective

import (
	"context"

	"vnic.dev/vnic/devmem"
)

// AllReduce adds count elements of all ranks' buffers, from offset off of each buffer on. When it
// returns, this rank's buffer has the sums. The elements are cut into n chunks; chunk c is added in
// the order of ranks c, c+1, ..., c-1.
//
// Errors: EINVAL (offset, type), EFAULT (outside of the buffer) and ENOSPC (a chunk is longer than
// Scratch) before anything is sent; *Error for an error of a neighbour, after which the Ring is
// closed and the buffer has any content.
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
