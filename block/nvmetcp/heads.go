package nvmetcp

import (
	"context"

	"vnic.dev/vnic/block"
	"vnic.dev/vnic/devmem"
)

const maxWindow = 64

// heads reads the headers of the I/O queue's PDUs in place, up to maxWindow at a time. Of received bytes it also reads
// ahead those places where headers are if the next PDUs are like the last ones: all of one length, or pairs of a
// C2HData and a CapsuleResp. It drops read bytes that turn out not to be at the start of a PDU.
type heads struct {
	stream *devmem.Stream
	device bool   // Config.Copy is off: data should arrive in device memory
	pos    uint64 // bytes taken or skipped in the stream

	seen    [maxWindow]seenHead
	i, n    int // seen[i:n] are read, and next has not returned them yet
	window  int // the most headers, or pairs, of the next call of look; for pairs maxWindow/2 if that is less
	scratch [maxWindow * headLen]byte

	stride uint64 // expected distance of headers, or of pairs; 0: unknown
	pair   bool   // stride is the length of a C2HData and its CapsuleResp together
	inPair bool   // a CapsuleResp is expected next

	stats block.Stats // only Looked, Looks and Messages are counted here
}

type seenHead struct {
	pos uint64
	b   [headLen]byte
}

// next copies the header at the start of the stream's untaken data to b; headLen bytes must have arrived.
func (h *heads) next(ctx context.Context, b *[headLen]byte) error {
	for h.i < h.n && h.seen[h.i].pos < h.pos {
		h.i++
		h.window = 1
	}
	if h.i == h.n || h.seen[h.i].pos != h.pos {
		if h.i < h.n {
			h.window = 1
		}
		if err := h.look(ctx); err != nil {
			return err
		}
	}
	*b = h.seen[h.i].b
	h.i++
	h.stats.Messages++
	return nil
}

func (h *heads) forget() { h.stride, h.pair, h.inPair, h.window = 0, false, false, 1 }

// look reads the next header to seen, and, of the bytes that have arrived, up to window headers or pairs at the
// places that stride, pair and inPair predict.
func (h *heads) look(ctx context.Context) error {
	size, count, room := uint64(headLen), 1, h.stream.Len()
	switch {
	case h.pair && h.inPair && room >= 2*headLen:
		size = 2 * headLen
		count = min(h.window, maxWindow/2, int((room-size)/h.stride)+1)
	case !h.pair && h.stride > 0:
		count = min(h.window, int((room-size)/h.stride)+1)
	}
	dst := h.scratch[:count*int(size)]
	each := devmem.Strided{Stride: h.stride, Len: int(size), Count: count}
	if h.stride == size { // the headers are adjacent: one piece is enough
		each.Len, each.Count = len(dst), 1
	}
	if err := h.stream.LookEach(ctx, dst, each); err != nil {
		return err
	}
	h.window = min(2*h.window, maxWindow)
	if h.device {
		h.stats.Looks++
		h.stats.Looked += uint64(len(dst))
	}
	h.i, h.n = 0, 0
	for k := range count {
		for off := uint64(0); off < size; off += headLen {
			s := &h.seen[h.n]
			s.pos = h.pos + uint64(k)*h.stride + off
			copy(s.b[:], dst[uint64(k)*size+off:])
			h.n++
		}
	}
	return nil
}

func (h *heads) took(n uint64) { h.pos += n }

// learn sets stride, pair and inPair from the header of the PDU that next has returned.
func (h *heads) learn(p *common) {
	switch {
	case p.Type == typeC2HData && p.Flags&flagLast != 0 && p.Flags&flagSuccess == 0:
		h.stride, h.pair, h.inPair = headLen+uint64(p.PLen), true, true
	case p.Type == typeCapsuleResp && h.pair && h.inPair:
		h.inPair = false
	default:
		h.stride, h.pair, h.inPair = uint64(p.PLen), false, false
	}
}
