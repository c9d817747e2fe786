package stack

import (
	"gvisor.dev/gvisor/pkg/buffer"
	"gvisor.dev/gvisor/pkg/tcpip"
)

// newGhost returns n bytes of payload that is not there: netstack counts them, and the link layer says where they lie.
//
// Netstack reads a payload into buffers that it allocates and clears first, which is most of what a send costs, and
// then keeps 64 KiB of nothing for each segment. So a ghost asks for a buffer of one byte and says that it has put n
// bytes there: the view counts n bytes over memory that it has not got. No byte of it can be read, not even by mistake:
// that is a slice out of bounds. thinGhosts says whether this netstack can be told so; the other kind of ghost fills
// no byte of a buffer of the right size.
func newGhost(n int) tcpip.Payloader {
	if thinGhosts {
		return &thinGhost{n}
	}
	return &thickGhost{n}
}

type thinGhost struct{ n int }

// Len implements tcpip.Payloader: room for one byte is to be made.
func (g *thinGhost) Len() int { return min(g.n, 1) }

// Read implements io.Reader, but for the bound.
func (g *thinGhost) Read(b []byte) (n int, err error) {
	if len(b) > 0 {
		n, g.n = g.n, 0
	}
	return n, nil
}

type thickGhost struct{ n int }

// Len implements tcpip.Payloader.
func (g *thickGhost) Len() int { return g.n }

// Read implements io.Reader.
func (g *thickGhost) Read(b []byte) (int, error) {
	n := min(len(b), g.n)
	g.n -= n
	return n, nil
}

// isGhost says whether a view's bytes are not there.
func isGhost(v *buffer.View) bool { return v.Size() > v.Capacity() }

var thinGhosts = func() bool {
	var b buffer.Buffer
	defer b.Release()
	g := &thinGhost{writeSize}
	if n, err := b.WriteFromReader(g, int64(g.Len())); n != writeSize || err != nil {
		return false
	}
	c := b.Clone()
	defer c.Release()
	c.TrimFront(1000)
	c.Truncate(5000)
	list := c.AsViewList()
	return b.Size() == writeSize && c.Size() == 5000 && list.Len() == 1 && list.Front().Size() == 5000 &&
		isGhost(list.Front())
}()
