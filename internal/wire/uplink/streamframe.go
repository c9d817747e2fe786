package uplink

import (
	"encoding/binary"
	"fmt"
)

// QEMU's -netdev stream has before each frame its length, 32 bits in network order (net/net.c, net_fill_rstate and
// net/stream.c, net_stream_receive). It takes frames of NET_BUFSIZE (include/net/net.h) at most, and hangs up at more.
const (
	streamLen = 4
	streamMax = 4096 + 65536
)

// putLength writes the length of a frame of n bytes.
func putLength(b []byte, n int) { binary.BigEndian.PutUint32(b, uint32(n)) }

// cutter cuts a stream of bytes into frames. What it gives is good until the next call of room.
type cutter struct {
	buf        []byte // as long as the longest frame that is wanted, with its length
	start, end int    // what was read and not cut
	skip       int    // bytes of a frame that is too long which are still to come
}

func newCutter(longest int) *cutter {
	return &cutter{buf: make([]byte, max(streamLen+longest, 64<<10))}
}

// room is where the next bytes of the stream go; never empty. filled says how many have come.
func (c *cutter) room() []byte {
	if c.start > 0 {
		c.end = copy(c.buf, c.buf[c.start:c.end])
		c.start = 0
	}
	return c.buf[c.end:]
}

func (c *cutter) filled(n int) { c.end += n }

// next gives the next frame; more is false if that has not come whole. Of a frame that is too long for the buffer it
// gives no byte, and says so. After an error nobody can tell where the next one begins.
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
