package stack

import (
	"gvisor.dev/gvisor/pkg/buffer"
	"gvisor.dev/gvisor/pkg/tcpip"
)

// newPlaceholder returns n bytes that stand for payload in device memory: netstack counts them, and
// the link layer says where the payload lies.
//
// Netstack reads a payload into buffers that it allocates and clears first, which is most of what a
// send costs, and then keeps 64 KiB of nothing for each segment. So a thin placeholder asks for a
// buffer of one byte and says that it has put n bytes there: the view counts n bytes over memory
// that it has not got. No byte of it can be read, not even by mistake: that is a slice out of
// bounds. thinWorks says whether this netstack takes thin placeholders; a thick one leaves a buffer
// of the right size as it is.
func newPlaceholder(n int) tcpip.Payloader {
	if thinWorks {
		return &thinPlaceholder{n}
	}
	return &thickPlaceholder{n}
}

type thinPlaceholder struct{ n int }

// Len implements tcpip.Payloader: room for one byte is to be made.
func (g *thinPlaceholder) Len() int { return min(g.n, 1) }

// Read implements io.Reader, but for the bound.
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

// isPlaceholder says whether a view's bytes are not there.
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
