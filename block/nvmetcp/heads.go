package nvmetcp

import (
	"context"

	"vnic.dev/vnic/block"
	"vnic.dev/vnic/devmem"
)

// maxWindow is how many heads are looked at in one go.
const maxWindow = 64

// heads looks at the heads of PDUs where they lie. It looks ahead, at where heads lie if the PDUs that were
// received go on as the last ones were: of one length; or in pairs of a C2HData and the CapsuleResp behind it. What
// it has looked at is a head only where the PDU before ends there: whoever uses heads takes PDUs one by one, by
// what their own heads say, and what does not lie at the start of one is forgotten.
type heads struct {
	stream *devmem.Stream
	device bool // it lies in device memory
	at     uint64

	seen    [maxWindow]seenHead
	i, n    int // seen[i:n] are ahead
	window  int // of the next look
	scratch [maxWindow * headLen]byte

	stride uint64 // from a head to the next; 0: not known
	pair   bool   // a CapsuleResp is expected behind each C2HData; stride is from one of these to the next
	inPair bool   // it is expected now

	stats block.Stats // Looked, Looks and Messages
}

// seenHead is what lies at a place of the stream.
type seenHead struct {
	at uint64
	b  [headLen]byte
}

// next gives the head at the start of what was not taken, of which there are headLen bytes at least.
func (h *heads) next(ctx context.Context, b *[headLen]byte) error {
	for h.i < h.n && h.seen[h.i].at < h.at {
		h.i++
		h.window = 1
	}
	if h.i == h.n || h.seen[h.i].at != h.at {
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

// forget forgets what PDUs were like: the next ones are others, and where a head is expected may be data.
func (h *heads) forget() { h.stride, h.pair, h.inPair, h.window = 0, false, false, 1 }

// look looks at as many heads as the window has.
func (h *heads) look(ctx context.Context) error {
	// Each piece is size bytes.
	size, count, most := uint64(headLen), 1, maxWindow
	if h.pair && h.inPair {
		most /= 2
	}
	if room := h.stream.Len(); h.pair && h.inPair && room >= 2*headLen {
		size = 2 * headLen
		count = min(h.window, most, int((room-size)/h.stride)+1)
	} else if !h.pair && h.stride > 0 {
		count = min(h.window, most, int((room-size)/h.stride)+1)
	}
	dst := h.scratch[:count*int(size)]
	each := devmem.Strided{Stride: h.stride, Len: int(size), Count: count}
	if h.stride == size { // heads alone, which lie behind each other
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
			s.at = h.at + uint64(k)*h.stride + off
			copy(s.b[:], dst[uint64(k)*size+off:])
			h.n++
		}
	}
	return nil
}

// took notes that n bytes of the stream were taken.
func (h *heads) took(n uint64) { h.at += n }

// learn notes what a PDU was like.
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
