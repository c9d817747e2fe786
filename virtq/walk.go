package virtq

import (
	"errors"
	"fmt"
	"math"

	"vnic.dev/vnic/dma"
)

// walker turns descriptor chains into segments (2.7.5). Its input is hostile.
type walker struct {
	space    *dma.Space
	size     int  // of the ring: no chain is longer
	indirect bool // VIRTIO_F_INDIRECT_DESC was negotiated

	copier *dma.Copier   // for indirect tables
	segs   []dma.Segment // where a table lies
	table  []byte        // private copy of a table
}

func (w *walker) init(s *dma.Space, c *Config) {
	*w = walker{space: s, size: int(c.Size), indirect: c.Indirect}
	if c.Indirect {
		w.copier = dma.NewCopier()
		w.table = make([]byte, w.size*descLen)
	}
}

// progress is how far a chain has been walked.
type progress struct {
	n     int    // buffers
	total uint64 // bytes
	write bool   // a write-only one was seen
}

// walk translates the chain that starts at head, which is in the table. The caller is inside the space's epoch.
func (w *walker) walk(r *deviceRing, head uint16, c *Chain) error {
	c.Head = head
	c.Out, c.In = c.Out[:0], c.In[:0]
	c.OutLen, c.InLen, c.InFirst = 0, 0, 0
	var p progress
	for i := head; ; {
		var d desc
		d.decode(r.desc(i))
		if d.flags&flagIndirect != 0 {
			return w.walkTable(d, &p, c)
		}
		if p.n == w.size {
			return bad(head, "loop: more than %d descriptors", w.size)
		}
		if err := w.add(d, &p, c); err != nil {
			return err
		}
		if d.flags&flagNext == 0 {
			return nil
		}
		if int(d.next) >= w.size {
			return bad(head, "descriptor %d: next is %d of %d", i, d.next, w.size)
		}
		i = d.next
	}
}

// walkTable goes on in an indirect table (2.7.5.3), to which t refers and where the chain must end. t's
// write-only flag means nothing there.
func (w *walker) walkTable(t desc, p *progress, c *Chain) error {
	switch {
	case !w.indirect:
		return bad(c.Head, "indirect table, not negotiated")
	case t.flags&flagNext != 0:
		return bad(c.Head, "indirect table with a next descriptor")
	case t.len == 0 || t.len%descLen != 0:
		return bad(c.Head, "indirect table of %d bytes", t.len)
	case t.len > uint32(len(w.table)):
		return bad(c.Head, "indirect table of %d descriptors, ring of %d", t.len/descLen, w.size)
	}
	var err error
	if w.segs, err = w.space.Translate(w.segs[:0], t.addr, uint64(t.len), dma.Read); err != nil {
		return bad(c.Head, "indirect table at %#x, %d bytes: %w", t.addr, t.len, err)
	}
	table := w.table[:t.len]
	if n, err := w.copier.Read(table, w.segs); err != nil {
		return fmt.Errorf("head %d: indirect table at %#x: %w", c.Head, t.addr, err)
	} else if n != len(table) {
		return bad(c.Head, "indirect table at %#x: %d of %d bytes", t.addr, n, len(table))
	}
	n := len(table) / descLen
	for i, steps := 0, 0; ; steps++ {
		if steps == n {
			return bad(c.Head, "loop in an indirect table of %d", n)
		}
		var d desc
		d.decode((*[descLen]byte)(table[i*descLen:]))
		if d.flags&flagIndirect != 0 {
			return bad(c.Head, "indirect descriptor %d: nested table", i)
		}
		if p.n == w.size {
			return bad(c.Head, "more than %d descriptors with its indirect table", w.size)
		}
		if err := w.add(d, p, c); err != nil {
			return err
		}
		if d.flags&flagNext == 0 {
			return nil
		}
		if int(d.next) >= n {
			return bad(c.Head, "indirect descriptor %d: next is %d of %d", i, d.next, n)
		}
		i = int(d.next)
	}
}

// add translates one buffer. An empty one is allowed, wherever it points.
func (w *walker) add(d desc, p *progress, c *Chain) (err error) {
	p.n++
	if p.total += uint64(d.len); p.total > math.MaxUint32 {
		return bad(c.Head, "%d bytes in %d descriptors", p.total, p.n)
	}
	if d.flags&flagWrite != 0 {
		p.write = true
		if d.len != 0 {
			if c.InLen == 0 {
				c.InFirst = d.len
			}
			c.InLen += d.len
			c.In, err = w.space.Translate(c.In, d.addr, uint64(d.len), dma.Write)
		}
	} else {
		if p.write {
			return bad(c.Head, "a readable buffer follows a writable one")
		}
		if d.len != 0 {
			c.OutLen += d.len
			c.Out, err = w.space.Translate(c.Out, d.addr, uint64(d.len), dma.Read)
		}
	}
	if err != nil {
		return bad(c.Head, "buffer at %#x, %d bytes: %w", d.addr, d.len, err)
	}
	return nil
}

// chainError is ErrBadChain with the head and what is wrong with it. Is makes both, and what lies below, findable.
type chainError struct {
	head   uint16
	reason error
}

func (e *chainError) Error() string {
	return fmt.Sprintf("%v: head %d: %v", ErrBadChain, e.head, e.reason)
}
func (e *chainError) Is(target error) bool { return target == ErrBadChain }
func (e *chainError) Unwrap() error        { return e.reason }

func bad(head uint16, format string, args ...any) error {
	return &chainError{head: head, reason: fmt.Errorf(format, args...)}
}

// BadHead tells which head an ErrBadChain is about.
func BadHead(err error) (head uint16, ok bool) {
	var e *chainError
	if !errors.As(err, &e) {
		return 0, false
	}
	return e.head, true
}
