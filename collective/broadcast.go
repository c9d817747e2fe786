package collective

import (
	"context"
	"fmt"
	"syscall"

	"vnic.dev/vnic/devmem"
)

// pieceLen is the most bytes that a rank sends, and receives, in a step of a broadcast: it forwards a piece while it
// receives the next one.
const pieceLen = 1 << 20

// Broadcast copies count elements of the root's buffer to the other ranks' buffers, from rank to rank; off is the
// elements' offset in bytes in this rank's buffer. It uses no scratch memory. Errors are AllReduce's without ENOSPC;
// EINVAL also for a root that is no rank.
func (r *Ring) Broadcast(ctx context.Context, t devmem.Type, b devmem.Buffer, off, count uint64, root int) error {
	return r.broadcast(t, b, off, count, root).do(ctx)
}

func (r *Ring) broadcast(t devmem.Type, b devmem.Buffer, off, count uint64, root int) *operation {
	o := r.begin("broadcast", t, b, off, count)
	if root < 0 || root >= r.c.Ranks {
		o.err = fmt.Errorf("broadcast: from rank %d of %d: %w", root, r.c.Ranks, syscall.EINVAL)
	}
	all := count * t.Size()
	piece := func(k int, has bool) chunk {
		pos := uint64(k) * pieceLen
		if !has || k < 0 || pos >= all {
			return chunk{}
		}
		return chunk{pos, min(pieceLen, all-pos)}
	}
	o.steps = int((all+pieceLen-1)/pieceLen) + 1
	o.plan = func(k int) (send, receive chunk, add bool) {
		return piece(k-1, r.next != root), piece(k, r.c.Rank != root), false
	}
	return o
}
