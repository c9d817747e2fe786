package nic

import (
	"errors"
	"fmt"

	"vnic.dev/vnic/dma"
	"vnic.dev/vnic/internal/wire"
	"vnic.dev/vnic/splitter"
)

// MaxHeader is the greatest length of a packet's headers, in bytes: splitter reads no further.
const MaxHeader = splitter.MaxHeader

// MaxFrame is the longest frame, link header included, that a guest may send.
const MaxFrame = 65535 + splitter.EthLen + 8

const firstLook = 128

// ErrBadFrame is the error for a frame whose length, buffers or descriptors are not possible.
var ErrBadFrame = errors.New("bad frame")

// A guest can cause these errors with each frame, so they are allocated only once.
var (
	errFrameLen  = fmt.Errorf("%w: its length is not %d to %d", ErrBadFrame, splitter.EthLen, MaxFrame)
	errShortRead = fmt.Errorf("%w: fewer bytes in memory than promised", ErrBadFrame)
	errChanged   = fmt.Errorf("%w: its buffers became shorter while it waited", ErrBadFrame)
)

// ParseFrame fills in p for the frame that lies in segs behind skip bytes of the device model's header
// (virtio_net_hdr); total is the length of both. buf holds skip + MaxHeader bytes, and must stay unchanged as
// long as p is used: ParseFrame copies both headers to it. The payload stays in segs. ParseFrame sets
// Meta.Headers; the caller sets the rest of Meta, and then calls p.Prepare. It reuses the storage of p.Payload.
//
// ParseFrame reads bytes behind the first segment only if the headers are not complete in the segment, or in its
// first 128 bytes.
func ParseFrame(c *dma.Copier, segs []dma.Segment, skip, total uint32, buf []byte, p *wire.Packet) error {
	if total < skip+splitter.EthLen || total > skip+MaxFrame {
		return errFrameLen
	}
	n := total - skip
	look := min(n, firstLook)
	if first := firstBytes(segs, skip); first >= splitter.EthLen && first < look {
		look = first
	}
	h := &p.Meta.Headers
	for {
		got, err := c.Read(buf[:skip+look], segs)
		if err != nil {
			return err
		}
		if uint32(got) < skip+look {
			return errShortRead
		}
		err = splitter.Parse(buf[skip:skip+look], n, h)
		if err == nil || look == min(n, MaxHeader) { // Parse reads no further
			break
		}
		look = min(n, MaxHeader)
	}
	hlen := look
	if h.Class == splitter.TCP || h.Class == splitter.UDP {
		hlen = uint32(h.HdrLen)
		n = h.Carried(n)
	}
	p.Header = buf[skip : skip+hlen]
	p.Payload = dma.Cut(dma.Reuse(p.Payload), segs, uint64(skip+hlen), uint64(n-hlen))
	p.PayloadLen = n - hlen
	return nil
}

// firstBytes returns how many bytes are contiguous behind the first skip bytes.
func firstBytes(segs []dma.Segment, skip uint32) uint32 {
	for i := range segs {
		if n := segs[i].Len; n > skip {
			return n - skip
		}
		skip -= segs[i].Len
	}
	return 0
}

// RelocatePayload finds the payload of p again after its memory may have moved: the same bytes of segs, which
// are total bytes long. The headers stay.
func RelocatePayload(segs []dma.Segment, skip, total uint32, p *wire.Packet) error {
	if total < skip || total-skip < p.Len() {
		return errChanged
	}
	p.Payload = dma.Cut(dma.Reuse(p.Payload), segs, uint64(skip)+uint64(len(p.Header)), uint64(p.PayloadLen))
	return nil
}
