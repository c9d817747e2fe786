package collective

import (
	"context"

	"vnic.dev/vnic/devmem"
)

// AllReduce adds count elements of all ranks' buffers; off is their offset in bytes in this rank's buffer.
// When it returns without an error, this rank's buffer has the sums.
//
// Among the errors before anything is sent are EINVAL (offset, type), EFAULT (outside of the buffer), EXDEV (memory
// of another GPU), ENOSPC (a chunk longer than Scratch), and errors of BindTX. After later errors the Ring is
// closed, and the content of these elements is undefined.
func (r *Ring) AllReduce(ctx context.Context, t devmem.Type, b devmem.Buffer, off, count uint64) error {
	return r.allReduce(t, b, off, count).do(ctx)
}

func (r *Ring) allReduce(t devmem.Type, b devmem.Buffer, off, count uint64) *operation {
	n := r.c.Ranks - 1
	return r.begin("all-reduce", t, b, off, count).around(r.c.Rank, 2*n, n)
}
