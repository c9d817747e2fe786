package nic

import (
	"errors"
	"fmt"

	"vnic.dev/vnic/dma"
	"vnic.dev/vnic/splitter"
	"vnic.dev/vnic/wire"
)

// MaxHeader is the room for a packet's headers: splitter reads no further.
const MaxHeader = splitter.MaxHeader

// MaxFrame is the longest frame, link header included, that a guest may send: a 64 KiB IP packet with its link header
// and two tags.
const MaxFrame = 65535 + splitter.EthLen + 8

// firstLook is how much of a frame is read at first: headers of nearly all packets end before it.
const firstLook = 128

// ErrBadFrame says that a guest sent something that is no frame: too short or too long.
var ErrBadFrame = errors.New("bad frame")

// Describe fills in p for the frame of n bytes that lies in segs: its headers, copied to hdr (MaxHeader long, owned by
// the caller as long as p is), its payload, in place, and Meta.Headers. The rest of Meta is the caller's to set before
// it calls p.Prepare. p.Payload's storage is reused.
//
// Of the first segment no more than its own bytes are read unless the headers go on behind it, so that a driver that
// keeps headers and payload apart never has payload read as headers.
func Describe(c *dma.Copier, segs []dma.Segment, n uint32, hdr []byte, p *wire.Packet) error {
	if n < splitter.EthLen || n > MaxFrame {
		return fmt.Errorf("%w: %d bytes, not %d to %d", ErrBadFrame, n, splitter.EthLen, MaxFrame)
	}
	look := min(n, firstLook)
	if first := segs[0].Len; first >= splitter.EthLen && first < look {
		look = first
	}
	var h *splitter.Headers = &p.Meta.Headers
	for {
		got, err := c.Read(hdr[:look], segs)
		if err != nil {
			return err
		}
		if uint32(got) < look {
			return fmt.Errorf("%w: %d bytes in memory, %d promised", ErrBadFrame, got, n)
		}
		err = splitter.Parse(hdr[:look], n, h)
		if err == nil {
			break
		}
		if look == min(n, MaxHeader) { // as much as Parse ever wants: it says Malformed itself
			break
		}
		look = min(n, MaxHeader)
	}
	hlen := look
	if h.Class == splitter.TCP || h.Class == splitter.UDP {
		hlen = uint32(h.HdrLen)
		n = h.FrameLen // what lies behind the IP packet of a runt is padding
	}
	p.Header = hdr[:hlen]
	p.Payload = dma.Cut(p.Payload[:0], segs, uint64(hlen), uint64(n-hlen))
	p.PayloadLen = n - hlen
	return nil
}
