package dma

import (
	"fmt"
	"math/bits"
	"sync/atomic"
)

// Copier copies bytes between segments and slices. One goroutine at a time uses it: a goroutine inside the
// spaces of its segments, or one that Go started or that has called Guard.
//
// If a file faults, a method returns its *FaultError, and counts only completely copied pieces.
type Copier struct {
	counts atomic.Pointer[Counts] // nil until Counts is called
}

// NewCopier returns a Copier.
func NewCopier() *Copier { return new(Copier) }

// Counts returns the copier's counters, which any goroutine may read. The copier counts from the first call of
// Counts on.
func (c *Copier) Counts() *Counts {
	if counts := c.counts.Load(); counts != nil {
		return counts
	}
	c.counts.CompareAndSwap(nil, new(Counts))
	return c.counts.Load()
}

func (c *Copier) counting() bool { return c.counts.Load() != nil }

// cursor walks over a private slice, and then over segments.
type cursor struct {
	rest   []byte    // what is left of the segment
	segs   []Segment // the segments after it
	region *Region   // region of the segment; nil: a private slice
	off    uint64    // where rest begins in region
	access Access
}

// next moves to the next segment if rest is empty. It returns false at the end.
func (u *cursor) next() (bool, error) {
	for len(u.rest) == 0 {
		if len(u.segs) == 0 {
			return false, nil
		}
		s := &u.segs[0]
		b, err := s.bytes(u.access)
		if err != nil {
			return false, err
		}
		u.rest, u.region, u.off = b, s.Region, s.Off
		u.segs = u.segs[1:] // apart: in the assignment above it would make callers' slices escape to the heap
	}
	return true, nil
}

func (u *cursor) advance(n int) {
	u.rest = u.rest[n:]
	u.off += uint64(n)
}

// memKind returns the kind of the memory at the cursor, how many bytes of it follow, and its GPU or -1.
func (u *cursor) memKind() (d MemKind, n uint64, gpu int) {
	switch {
	case u.region == nil:
		return Private, uint64(len(u.rest)), -1
	case u.region.file == nil:
		return u.region.buf, uint64(len(u.rest)), -1
	}
	d, n = u.region.file.MemKind(u.region.off + u.off)
	return d, n, u.region.file.GPU()
}

// done advances both cursors by n copied bytes, and counts them.
func (c *Copier) done(dst, src *cursor, n int) {
	// A log of dirty pages would have to mark dst here, in behind and in View.
	counts := c.counts.Load()
	if counts == nil {
		src.advance(n)
		dst.advance(n)
		return
	}
	for n > 0 {
		sd, sn, sg := src.memKind()
		dd, dn, dg := dst.memKind()
		if dg < 0 {
			dg = sg
		}
		k := int(min(uint64(n), sn, dn))
		if k == 0 {
			k = n
		}
		counts.bytes[sd][dd][dg+1].Add(uint64(k))
		src.advance(k)
		dst.advance(k)
		n -= k
	}
}

// Copy copies src to dst until one of them ends.
func (c *Copier) Copy(dst, src []Segment) (n uint64, err error) {
	return c.copy(&cursor{segs: dst, access: Write}, &cursor{segs: src})
}

// CopyBehind copies head, a private slice, and then src to dst, until dst or src ends.
func (c *Copier) CopyBehind(dst []Segment, head []byte, src []Segment) (n uint64, err error) {
	if len(dst) == 1 && len(src) <= 1 && uint64(len(head)) <= uint64(dst[0].Len) {
		if n, err, done := c.behind(&dst[0], head, src); done {
			return n, err
		}
	}
	return c.copy(&cursor{segs: dst, access: Write}, &cursor{rest: head, segs: src})
}

func (c *Copier) copy(dst, src *cursor) (n uint64, err error) {
	defer Recover(&err)
	for {
		if ok, err := src.next(); !ok {
			return n, err
		}
		if ok, err := dst.next(); !ok {
			return n, err
		}
		k := min(len(dst.rest), len(src.rest))
		move(dst, src, k)
		c.done(dst, src, k)
		n += uint64(k)
	}
}

// move copies the next n bytes of src to dst.
//
// Go's memmove copies backwards if dst begins inside src, on an amd64 without AVX with the direction flag set.
// If that copy faults, the flag stays set, and the runtime's own string instructions run backwards. So move
// copies overlapping bytes in pieces of 256, from the end: a memmove of up to 256 bytes loads everything before
// it stores.
func move(dst, src *cursor, n int) {
	d, s := dst.rest[:n], src.rest[:n]
	if src.region == nil || dst.region == nil || src.region.file != dst.region.file || src.region.file == nil ||
		dst.region.off+dst.off-(src.region.off+src.off) >= uint64(n) { // dst does not begin inside src
		copy(d, s)
		return
	}
	const piece = 256
	for n > 0 {
		from := max(0, n-piece)
		copy(d[from:n], s[from:n])
		n = from
	}
}

// CopySum is Copy, and also returns the ones' complement sum (RFC 1071, not inverted, in host order) of the
// copied bytes, as if they were contiguous and began at an even offset. If dst begins inside src, the copied
// bytes are unspecified.
func (c *Copier) CopySum(dst, src []Segment) (n uint64, sum uint16, err error) {
	defer Recover(&err)
	d, s := cursor{segs: dst, access: Write}, cursor{segs: src}
	var acc uint64
	for {
		if ok, err := s.next(); !ok {
			return n, fold64(acc), err
		}
		if ok, err := d.next(); !ok {
			return n, fold64(acc), err
		}
		k := min(len(d.rest), len(s.rest))
		part := copySum64(d.rest[:k], s.rest[:k], 0)
		acc = join(acc, part, n)
		c.done(&d, &s, k)
		n += uint64(k)
	}
}

// join adds to acc the sum of a piece that begins at byte n. If n is odd, the piece's bytes are in the other
// halves of their words.
func join(acc, part, n uint64) uint64 {
	if n&1 != 0 {
		part = bits.RotateLeft64(part, 8)
	}
	return add64(acc, part)
}

// Sum returns the ones' complement sum of src, as CopySum does.
func (c *Copier) Sum(src []Segment) (sum uint16, err error) {
	defer Recover(&err)
	s := cursor{segs: src}
	var acc, n uint64
	for {
		if ok, err := s.next(); !ok {
			return fold64(acc), err
		}
		acc = join(acc, sum64(s.rest, 0), n)
		n += uint64(len(s.rest))
		s.advance(len(s.rest))
	}
}

// Write copies src, a private slice, to dst until one of them ends.
func (c *Copier) Write(dst []Segment, src []byte) (int, error) {
	if len(dst) == 1 {
		if n, err, done := c.behind(&dst[0], src[:min(len(src), int(dst[0].Len))], nil); done {
			return int(n), err
		}
	}
	n, err := c.copy(&cursor{segs: dst, access: Write}, &cursor{rest: src})
	return int(n), err
}

// View calls f with the memory of seg itself, in pieces of at most limit bytes, until an error of f. f must not
// keep the slice. View counts no bytes.
func (c *Copier) View(seg Segment, limit int, f func([]byte) error) (err error) {
	defer Recover(&err)
	if limit <= 0 {
		return fmt.Errorf("%w: view in pieces of %d bytes", ErrBounds, limit)
	}
	b, err := seg.bytes(Read) // for an access of kind Write the caller has translated seg
	if err != nil {
		return err
	}
	for len(b) > 0 {
		n := min(limit, len(b))
		// f may write to these bytes: see done.
		if err := f(b[:n:n]); err != nil {
			return err
		}
		b = b[n:]
	}
	return nil
}
