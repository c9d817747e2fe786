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
// (virtio_net_hdr); total is the length of both. buf has room for skip + MaxHeader bytes, and must stay unchanged as
// long as p is used: ParseFrame copies the model's header and p.Header to it. p.Header gets the headers of a TCP or
// UDP frame; of another frame it gets the bytes that ParseFrame read to find the headers. The payload stays in segs:
// all bytes behind p.Header, except the padding of a short TCP or UDP frame (splitter.Headers.Carried). ParseFrame
// sets Meta.Headers; the caller sets the rest of Meta, and then calls p.Prepare. ParseFrame reuses the storage of
// p.Payload.
//
// ParseFrame reads bytes behind the segment where the frame begins only if the headers do not end in this segment, or
// not in the frame's first 128 bytes.
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

// RelocatePayload sets p.Payload again, after the frame's memory may have moved, to the same bytes of the frame, now
// in segs behind skip bytes. total is the length of segs; RelocatePayload returns ErrBadFrame if segs has become too
// short. p.Header stays as it is.
func RelocatePayload(segs []dma.Segment, skip, total uint32, p *wire.Packet) error {
	if total < skip || total-skip < p.Len() {
		return errChanged
	}
	p.Payload = dma.Cut(dma.Reuse(p.Payload), segs, uint64(skip)+uint64(len(p.Header)), uint64(p.PayloadLen))
	return nil
}
