package virtq

import (
	"errors"
	"fmt"
	"math"

	"vnic.dev/vnic/dma"
)

// walker turns descriptor chains into segments (2.7.5).
type walker struct {
	space    *dma.Space
	mem      dma.Translator // of space
	longest  int            // most descriptors that a chain may have outside of an indirect table
	indirect bool           // VIRTIO_F_INDIRECT_DESC was negotiated

	descs [][descLen]byte // the ring's descriptor table
	table []byte          // private copy of an indirect table
	rows  [][descLen]byte // table, as descriptors
}

func (w *walker) init(s *dma.Space, c *Config) {
	*w = walker{
		space: s, mem: dma.NewTranslator(s), longest: min(int(c.Size), MaxDescriptors), indirect: c.Indirect,
	}
	if c.Indirect {
		w.grow(w.longest)
	}
}

func (w *walker) grow(n int) {
	w.table = make([]byte, n*descLen)
	w.rows = rows[[descLen]byte](w.table)
}

// walk translates the chain that starts at head. The caller is inside the space (dma.Space.Enter). After an error the
// caller empties c. Memory that the device cannot reach is no error: walk sets c.Fault. A translation
// miss is an error. entry is the avail index of the chain, for errors.
func (w *walker) walk(entry pos, head uint16, c *Chain) (err error) {
	table := w.descs
	if int(head) >= len(table) {
		return badEntry(entry, head, len(table))
	}
	c.Head = head
	if c.Fault != nil {
		c.Fault = nil
	}
	if cap(c.Out)|cap(c.In) < dma.KeepSegments {
		c.Out, c.In = c.Out[:0], c.In[:0]
	} else {
		c.Out, c.In = dma.Reuse(c.Out), dma.Reuse(c.In)
	}
	c.OutLen, c.InLen, c.InFirst, c.Empty = 0, 0, 0, 0
	var (
		nested bool        // the walk is in an indirect table
		most   = w.longest // most descriptors that the chain may have
		left   = most      // how many descriptors may still come, the present one included
		total  uint64
		writes bool // the walk has met a writable buffer
	)
	for i := int(head); ; {
		d := decode(&table[i])
		if d.flags&flagIndirect != 0 {
			if nested {
				return bad(head, "descriptor %d: indirect table in an indirect table", i)
			}
			if table, err = w.fetch(d, head); err != nil {
				return w.unreached(c, i, d, err)
			}
			c.Descs = most - left + 1
			left += MaxDescriptors - most
			i, nested, left, most = 0, true, min(left, len(table)), MaxDescriptors
			continue
		}
		if left--; left < 0 {
			return bad(head, "descriptor %d: a loop, or more than %d descriptors", i, most)
		}
		if total += uint64(d.len); total > math.MaxUint32 {
			return bad(head, "descriptor %d: %d bytes in all", i, total)
		}
		// An empty buffer is allowed, with any address.
		if d.flags&flagWrite != 0 {
			writes = true
			if d.len != 0 {
				if c.InLen == 0 {
					c.InFirst = d.len
				}
				c.InLen += d.len
				c.In, err = w.mem.TranslateMax(c.In, MaxSegments-len(c.Out), d.addr, uint64(d.len), dma.Write)
			} else {
				c.Empty++
			}
		} else if writes {
			return bad(head, "descriptor %d: a readable buffer follows a writable one", i)
		} else if d.len != 0 {
			c.OutLen += d.len
			c.Out, err = w.mem.TranslateMax(c.Out, MaxSegments, d.addr, uint64(d.len), dma.Read)
		} else {
			c.Empty++
		}
		if err != nil {
			return w.unreached(c, i, d, err)
		}
		if d.flags&flagNext == 0 {
			if !nested {
				c.Descs = most - left
			}
			return nil
		}
		if i = int(d.next); i >= len(table) {
			return bad(head, "next descriptor is %d of %d", i, len(table))
		}
	}
}

// fetch makes a private copy of the indirect table that t refers to (2.7.5.3). It may be longer than the ring:
// 2.7.5.3.1 forbids that, but Linux does it (virtqueue_use_indirect).
func (w *walker) fetch(t desc, head uint16) (table [][descLen]byte, err error) {
	switch {
	case !w.indirect:
		return nil, bad(head, "indirect table, not negotiated")
	case t.flags&flagNext != 0:
		return nil, bad(head, "indirect table with a next descriptor")
	case t.len == 0 || t.len%descLen != 0:
		return nil, bad(head, "indirect table of %d bytes", t.len)
	case t.len > MaxDescriptors*descLen:
		return nil, bad(head, "indirect table of %d descriptors (at most %d are read)", t.len/descLen, MaxDescriptors)
	case t.len > uint32(len(w.table)):
		w.grow(MaxDescriptors)
	}
	if err = w.mem.ReadAt(w.table[:t.len], t.addr); err != nil {
		return nil, err
	}
	return w.rows[:t.len/descLen], nil
}

// unreached handles the error err of the memory of descriptor i. If the device cannot reach the memory, it makes err
// the chain's Fault, empties c, and returns nil; else it returns err, or an error that wraps it.
func (w *walker) unreached(c *Chain, i int, d desc, err error) error {
	var isBad *chainError
	what := "buffer"
	if d.flags&flagIndirect != 0 {
		what = "indirect table"
	}
	switch {
	case errors.As(err, &isBad):
		return err
	case errors.Is(err, dma.ErrUnmapped), errors.Is(err, dma.ErrAccess):
		c.Out, c.In = dma.Reuse(c.Out[:0]), dma.Reuse(c.In[:0])
		c.OutLen, c.InLen, c.InFirst, c.Empty = 0, 0, 0, 0
		c.Fault = &faultError{c.Head, i, what, d, err}
		return nil
	}
	return bad(c.Head, "descriptor %d: %s at %#x, %d bytes: %w", i, what, d.addr, d.len, err)
}

// faultError is formatted only on demand: a driver may cause one for each chain.
type faultError struct {
	head uint16
	i    int
	what string
	desc desc
	err  error
}

func (e *faultError) Error() string {
	return fmt.Sprintf("head %d: descriptor %d: %s at %#x, %d bytes: %v", e.head, e.i, e.what, e.desc.addr, e.desc.len,
		e.err)
}
func (e *faultError) Unwrap() error { return e.err }

// chainError is ErrBadChain for one head, with the reason.
type chainError struct {
	head   uint16
	reason error
}

func (e *chainError) Error() string {
	return fmt.Sprintf("%v: head %d: %v", ErrBadChain, e.head, e.reason)
}
func (e *chainError) Is(target error) bool { return target == ErrBadChain }
func (e *chainError) Unwrap() error        { return e.reason }

// bad returns the error of a bad chain. A translation miss is not ErrBadChain.
func bad(head uint16, format string, args ...any) error {
	reason := fmt.Errorf(format, args...)
	if errors.Is(reason, dma.ErrMiss) {
		return fmt.Errorf("head %d: %w", head, reason)
	}
	return &chainError{head: head, reason: reason}
}

func badEntry(entry pos, head uint16, size int) error {
	return bad(head, "avail entry %d: ring of %d", entry, size)
}

// BadHead returns the head of the chain that caused err; ok is false if err is not the ErrBadChain of a chain.
func BadHead(err error) (head uint16, ok bool) {
	var e *chainError
	if !errors.As(err, &e) {
		return 0, false
	}
	return e.head, true
}
