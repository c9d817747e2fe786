package dma

import (
	"fmt"
	"math/bits"
	"sync/atomic"
)

// Copier moves bytes between places. It belongs to one goroutine at a time, started by Go, which is
// inside the spaces of the segments that it gives. Nothing in it allocates, errors apart.
//
// A fault in a file comes back as that file's *FaultError; Space.Has tells whose it is. The count of bytes is then
// that of the pieces that were copied whole.
type Copier struct {
	counts atomic.Pointer[Counts] // nil: nobody has asked
}

// NewCopier returns a Copier.
func NewCopier() *Copier { return new(Copier) }

// Counts returns the copier's counters, which anyone may read at any time. The copier counts from the first call on: to
// look where the bytes of each small frame lie, and to add them so that others may read the sum, is not for nothing.
func (c *Copier) Counts() *Counts {
	if counts := c.counts.Load(); counts != nil {
		return counts
	}
	c.counts.CompareAndSwap(nil, new(Counts))
	return c.counts.Load()
}

// counting says whether anybody wants to know what is copied.
func (c *Copier) counting() bool { return c.counts.Load() != nil }

// cursor walks over segments, or over one private slice.
type cursor struct {
	rest   []byte    // of the current segment, not used yet
	segs   []Segment // after the current one
	region *Region   // of the current one; nil: private
	off    uint64    // of rest in region
	access Access
}

// next makes rest not empty. It returns false at the end.
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
		u.segs = u.segs[1:] // alone: escape analysis knows this form, and so callers' slices may live on their stacks
	}
	return true, nil
}

func (u *cursor) advance(n int) {
	u.rest = u.rest[n:]
	u.off += uint64(n)
}

// memKind returns the kind of memory at the cursor, how far it goes on, and the GPU.
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

// done moves on by n bytes, which have just been copied, and counts them if that is wanted. Every
// write to guest and GPU memory passes here or through View, but for those to rings (Pin).
func (c *Copier) done(dst, src *cursor, n int) {
	// A dirty-page log would mark [dst.off, dst.off+n) of dst.region here.
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

// Copy copies src to dst until one of them ends, and returns how many bytes that were.
func (c *Copier) Copy(dst, src []Segment) (n uint64, err error) {
	return c.copy(&cursor{segs: dst, access: Write}, &cursor{segs: src})
}

// CopyBehind copies head, a slice of the caller's own, and behind it src to dst until one end is reached.
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
// Go's memmove copies backwards if dst begins inside src, and on an amd64 without AVX it sets the direction flag to
// do so. A fault would leave the flag set: the panic and all that follows would run with it, and the runtime's own
// string instructions then write below what they were given. Moves of up to 256 bytes load everything before they
// store.
func move(dst, src *cursor, n int) {
	d, s := dst.rest[:n], src.rest[:n]
	if src.region == nil || dst.region == nil || src.region.file != dst.region.file || src.region.file == nil ||
		dst.region.off+dst.off-(src.region.off+src.off) >= uint64(n) { // also if dst is below src
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

// CopySum is Copy, and also returns the ones' complement sum (RFC 1071, not inverted, in host order) of the bytes
// that it copied, as if they were contiguous and began at an even offset. Where dst begins inside src, what it copies
// is unspecified.
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

// join adds the sum of a piece that begins at byte n. At an odd place its bytes are the other halves of their words.
func join(acc, part, n uint64) uint64 {
	if n&1 != 0 {
		part = bits.RotateLeft64(part, 8)
	}
	return add64(acc, part)
}

// Sum returns the ones' complement sum of src, as CopySum does. It is not counted: nothing moves.
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

// Write copies src, a slice of the caller's own, to dst until one of them ends.
func (c *Copier) Write(dst []Segment, src []byte) (int, error) {
	if len(dst) == 1 {
		if n, err, done := c.behind(&dst[0], src[:min(len(src), int(dst[0].Len))], nil); done {
			return int(n), err
		}
	}
	n, err := c.copy(&cursor{segs: dst, access: Write}, &cursor{rest: src})
	return int(n), err
}

// View calls f with the memory of seg in place, in order, in pieces of at most limit bytes, until f returns an error.
// It is for engines (hash, fill), which f does not outlive; nothing is counted. A fault in f is guarded as in Copy.
func (c *Copier) View(seg Segment, limit int, f func([]byte) error) (err error) {
	defer Recover(&err)
	if limit <= 0 {
		return fmt.Errorf("%w: view in pieces of %d bytes", ErrBounds, limit)
	}
	b, err := seg.bytes(Read) // the caller that fills has translated for Write
	if err != nil {
		return err
	}
	for len(b) > 0 {
		n := min(limit, len(b))
		// A dirty-page log would mark these n bytes here: f may write.
		if err := f(b[:n:n]); err != nil {
			return err
		}
		b = b[n:]
	}
	return nil
}
