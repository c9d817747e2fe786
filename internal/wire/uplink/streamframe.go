package uplink

import (
	"encoding/binary"
	"fmt"
)

// In QEMU's -netdev stream each frame follows its length, 32 bits in network order (net/net.c,
// net_fill_rstate and net/stream.c, net_stream_receive). QEMU closes the connection at a frame longer
// than NET_BUFSIZE (include/net/net.h), which is streamMax.
const (
	streamLen = 4
	streamMax = 4096 + 65536
)

func putLength(b []byte, n int) { binary.BigEndian.PutUint32(b, uint32(n)) }

// cutter cuts a stream of bytes into frames. A frame is valid until the next call of room.
type cutter struct {
	buf        []byte // with room, at least, for the longest accepted frame and its length
	start, end int    // buf[start:end] has been read, and not yet cut
	skip       int    // bytes still to skip of a frame that is too long
}

func newCutter(longest int) *cutter {
	return &cutter{buf: make([]byte, max(streamLen+longest, 64<<10))}
}

// room returns the buffer for the next bytes of the stream; the caller then passes their number to filled.
func (c *cutter) room() []byte {
	if c.start > 0 {
		c.end = copy(c.buf, c.buf[c.start:c.end])
		c.start = 0
	}
	return c.buf[c.end:]
}

func (c *cutter) filled(n int) { c.end += n }

// next returns the next frame, or why it skips a frame; more is false if it needs more of the stream first. After an
// error the start of the next frame is unknown.
func (c *cutter) next() (frame []byte, why reason, more bool, err error) {
	k := min(c.skip, c.end-c.start)
	c.start, c.skip = c.start+k, c.skip-k
	if c.skip > 0 || c.end-c.start < streamLen {
		return nil, none, false, nil
	}
	n := binary.BigEndian.Uint32(c.buf[c.start:])
	switch {
	case n > streamMax:
		return nil, none, false, fmt.Errorf("a frame of %d bytes, and QEMU's have %d at most", n, streamMax)
	case int(n) > len(c.buf)-streamLen:
		c.start, c.skip = c.start+streamLen, int(n)
		return nil, tooLong, true, nil
	case c.end-c.start-streamLen < int(n):
		return nil, none, false, nil
	}
	frame = c.buf[c.start+streamLen : c.start+streamLen+int(n)]
	c.start += streamLen + int(n)
	return frame, none, true, nil
}
