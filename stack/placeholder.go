package stack

import (
	"gvisor.dev/gvisor/pkg/buffer"
	"gvisor.dev/gvisor/pkg/tcpip"
)

// newPlaceholder returns a Payloader for n bytes of payload in device memory: netstack counts n bytes
// without having them, and the link layer puts the payload's place into the frames.
//
// Netstack reads a payload into buffers that it allocates and clears, which would be most of the
// cost of a send, and it would keep 64 KiB of zeros for each segment. So a thin placeholder asks
// for a buffer of one byte and returns n from Read: the view then has n bytes over memory that it
// does not have. No byte of it can be read by mistake, because the slice would be out of bounds.
// thinWorks reports whether this netstack accepts thin placeholders; a thick one fills a buffer of
// n bytes with nothing.
func newPlaceholder(n int) tcpip.Payloader {
	if thinWorks {
		return &thinPlaceholder{n}
	}
	return &thickPlaceholder{n}
}

type thinPlaceholder struct{ n int }

// Len implements tcpip.Payloader: it asks for room for one byte.
func (g *thinPlaceholder) Len() int { return min(g.n, 1) }

// Read implements io.Reader, except that it returns more than len(b).
func (g *thinPlaceholder) Read(b []byte) (n int, err error) {
	if len(b) > 0 {
		n, g.n = g.n, 0
	}
	return n, nil
}

type thickPlaceholder struct{ n int }

// Len implements tcpip.Payloader.
func (g *thickPlaceholder) Len() int { return g.n }

// Read implements io.Reader.
func (g *thickPlaceholder) Read(b []byte) (int, error) {
	n := min(len(b), g.n)
	g.n -= n
	return n, nil
}

// isPlaceholder reports whether a view has a thin placeholder's bytes: more than its buffer can hold.
func isPlaceholder(v *buffer.View) bool { return v.Size() > v.Capacity() }

var thinWorks = func() bool {
	var b buffer.Buffer
	defer b.Release()
	g := &thinPlaceholder{writeSize}
	if n, err := b.WriteFromReader(g, int64(g.Len())); n != writeSize || err != nil {
		return false
	}
	c := b.Clone()
	defer c.Release()
	c.TrimFront(1000)
	c.Truncate(5000)
	list := c.AsViewList()
	return b.Size() == writeSize && c.Size() == 5000 && list.Len() == 1 && list.Front().Size() == 5000 &&
		isPlaceholder(list.Front())
}()
