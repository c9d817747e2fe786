package collective

import (
	"context"

	"vnic.dev/vnic/devmem"
)

// AllReduce adds count elements of all ranks' buffers, from offset off of each buffer on. When it
// returns, this rank's buffer has the sums. The elements are cut into n chunks; chunk c is added in
// the order of ranks c, c+1, ..., c-1.
//
// Errors before anything is sent: EINVAL (offset, type), EFAULT (outside of the buffer), EXDEV (memory
// of another GPU than Config.GPU) and ENOSPC (a chunk is longer than Scratch). Later errors are an
// *Error, which names a neighbour, or wrap ctx's cause; after them the Ring is closed, and the content
// of the buffer is undefined.
func (r *Ring) AllReduce(ctx context.Context, t devmem.Type, b devmem.Buffer, off, count uint64) error {
	return r.allReduce(t, b, off, count).do(ctx)
}

func (r *Ring) allReduce(t devmem.Type, b devmem.Buffer, off, count uint64) *operation {
	n := r.c.Ranks - 1
	return r.begin("all-reduce", t, b, off, count).around(r.c.Rank, 2*n, n)
}
