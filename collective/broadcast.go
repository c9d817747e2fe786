package collective

import (
	"context"
	"fmt"
	"syscall"

	"vnic.dev/vnic/devmem"
)

// pieceLen is how many bytes a broadcast sends at a time: the next rank forwards a piece while it
// receives another.
const pieceLen = 1 << 20

// Broadcast copies count elements of the root's buffer, from offset off on, to the same offset of
// all other ranks' buffers, from rank to rank. It needs no scratch memory. Errors are AllReduce's
// without ENOSPC; EINVAL also if root is not a rank.
func (r *Ring) Broadcast(ctx context.Context, t devmem.Type, b devmem.Buffer, off, count uint64, root int) error {
	o, err := r.broadcasts(t, b, off, count, root)
	if err != nil {
		return err
	}
	all := count * t.Size()
	pieces := (all + pieceLen - 1) / pieceLen
	piece := func(k uint64, has bool) chunk {
		if !has || k >= pieces {
			return chunk{}
		}
		return chunk{k * pieceLen, min(pieceLen, all-k*pieceLen)}
	}
	o.steps = int(pieces) + 1
	receives, sends := r.c.Rank != root, r.next != root
	return r.do(ctx, o, func(ctx context.Context) error {
		for k := range pieces + 1 {
			if err := o.step(ctx, piece(k-1, sends && k > 0), piece(k, receives), false); err != nil {
				return err
			}
		}
		return nil
	})
}

// broadcasts is begin for a broadcast.
func (r *Ring) broadcasts(t devmem.Type, b devmem.Buffer, off, count uint64, root int) (*operation, error) {
	if root < 0 || root >= r.c.Ranks {
		return nil, fmt.Errorf("broadcast: from rank %d of %d: %w", root, r.c.Ranks, syscall.EINVAL)
	}
	return r.begin("broadcast", t, b, off, count)
}
