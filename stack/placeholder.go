package stack

import (
	"errors"

	"gvisor.dev/gvisor/pkg/buffer"
)

// placeholder is a Payloader for n bytes of payload in device memory: netstack counts n bytes without having
// them.
//
// A placeholder asks for a buffer of one byte and returns n from Read, so that netstack's view of it has the size n,
// which may be more than the view's memory.
type placeholder struct{ n int }

// Len implements tcpip.Payloader: it asks for room for one byte, and after Read for none.
func (g *placeholder) Len() int { return min(g.n, 1) }

// Read implements io.Reader, except that it writes nothing to b, and the first time that b is not empty returns n,
// which may be more than len(b).
func (g *placeholder) Read(b []byte) (n int, err error) {
	if len(b) > 0 {
		n, g.n = g.n, 0
	}
	return n, nil
}

// isPlaceholder reports whether a view has more bytes than its buffer can hold.
func isPlaceholder(v *buffer.View) bool { return v.Size() > v.Capacity() }

// errPlaceholder is set if this netstack does not accept placeholders.
var errPlaceholder = checkPlaceholder()

func checkPlaceholder() error {
	var b buffer.Buffer
	defer b.Release()
	g := &placeholder{writeSize}
	n, err := b.WriteFromReader(g, int64(g.Len()))
	c := b.Clone()
	defer c.Release()
	c.TrimFront(1000)
	c.Truncate(5000)
	list := c.AsViewList()
	if err != nil || n != writeSize || b.Size() != writeSize || c.Size() != 5000 || list.Len() != 1 ||
		list.Front().Size() != 5000 || !isPlaceholder(list.Front()) {
		return errors.New("gvisor's buffer.Buffer takes no placeholder: vnic needs the gvisor of its go.mod")
	}
	return nil
}
