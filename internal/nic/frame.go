package nic

import (
	"errors"
	"fmt"

	"vnic.dev/vnic/dma"
	"vnic.dev/vnic/internal/wire"
	"vnic.dev/vnic/splitter"
)

// MaxHeader is the longest headers of a packet, in bytes: splitter reads no further.
const MaxHeader = splitter.MaxHeader

// MaxFrame is the longest frame, link header included, that a guest may send: a 64 KiB IP packet
// with its link header and two tags.
const MaxFrame = 65535 + splitter.EthLen + 8

// firstLook is how much of a frame is read at first: headers of nearly all packets end before it.
const firstLook = 128

// ErrBadFrame says that a guest sent a malformed frame: too short or too long.
var ErrBadFrame = errors.New("bad frame")

// Errors that a guest can cause for each frame are made beforehand.
var (
	errFrameLen  = fmt.Errorf("%w: its length is not %d to %d", ErrBadFrame, splitter.EthLen, MaxFrame)
	errShortRead = fmt.Errorf("%w: fewer bytes in memory than promised", ErrBadFrame)
	errChanged   = fmt.Errorf("%w: its buffers became shorter while it waited", ErrBadFrame)
)

// ParseFrame fills in p for the frame that lies in segs behind skip bytes of the device model's own
// (virtio_net_hdr); all is total bytes long. buf holds skip + MaxHeader bytes and is the caller's
// as long as p is: it gets the device model's bytes, then the frame's headers. Payload stays in
// place. Meta.Headers is set; the rest of Meta is the caller's to set before it calls p.Prepare.
// p.Payload's storage is reused.
//
// Of the frame's first segment no more than its own bytes are read unless the headers go on behind
// it, so that a driver that keeps headers and payload apart never has payload read as headers.
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
		if err == nil || look == min(n, MaxHeader) { // as much as Parse ever wants: it says Malformed itself
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

// firstBytes is how many bytes lie together behind the first skip ones.
func firstBytes(segs []dma.Segment, skip uint32) uint32 {
	for i := range segs {
		if n := segs[i].Len; n > skip {
			return n - skip
		}
		skip -= segs[i].Len
	}
	return 0
}

// RelocatePayload places the payload of a frame that ParseFrame has seen, after its memory may have moved: the
// same bytes of segs, total in all. The headers are those that were read then: headers that were
// checked are not read twice.
func RelocatePayload(segs []dma.Segment, skip, total uint32, p *wire.Packet) error {
	if total < skip || total-skip < p.Len() {
		return errChanged
	}
	p.Payload = dma.Cut(dma.Reuse(p.Payload), segs, uint64(skip)+uint64(len(p.Header)), uint64(p.PayloadLen))
	return nil
}
