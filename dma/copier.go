package dma

import (
	"fmt"
	"math/bits"
	"sync/atomic"
)

// Copier copies bytes between segments and slices. One goroutine at a time uses it. The goroutine is inside the
// spaces of the segments that it passes (Space.Enter); for segments of a file outside any space (File.Region), Go
// has started it or it has called Guard.
//
// If a file faults, a method returns the file's *FaultError. The number of bytes that it returns, and the counts, may
// then be less than what it has copied.
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

// cursor walks over a slice of this process's own memory (private), and then over segments; both may be empty.
type cursor struct {
	rest   []byte    // the rest of the current segment, or of the private slice
	segs   []Segment // the segments after it
	region *Region   // region of the current segment; nil: rest is of the private slice
	off    uint64    // where rest begins in region
	access Access
}

// next moves to the next segment that is not empty if rest is empty. It returns false at the end, and with an error.
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
		u.segs = u.segs[1:]
	}
	return true, nil
}

func (u *cursor) advance(n int) {
	u.rest = u.rest[n:]
	u.off += uint64(n)
}

// memKind returns the kind of the memory at the cursor, how many bytes from there on have it (in a file also bytes
// behind the segment), and the memory's GPU or -1.
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

// done advances both cursors by n copied bytes, and counts them if Counts was called.
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

// CopyBehind copies head, a slice of this process's own memory, and then src to dst, until dst or src ends.
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
// If dst begins inside src, Go's memmove copies backwards. On an amd64 without AVX it then sets the direction flag for
// more than 256 bytes (runtime/memmove_amd64.s). If that copy faults, the flag stays set, and the runtime's own string
// instructions run backwards. So move copies such bytes in pieces of 256, from the end: a memmove of up to 256 bytes
// loads everything before it stores.
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
// copied bytes, as if they were contiguous and began at an even offset. After a fault the sum is 0. If dst begins
// inside src, the copied bytes are unspecified.
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

// join returns acc plus part, the sum of bytes that begin at byte n of all bytes that are summed. If n is odd,
// these bytes are in the other halves of their words.
func join(acc, part, n uint64) uint64 {
	if n&1 != 0 {
		part = bits.RotateLeft64(part, 8)
	}
	return add64(acc, part)
}

// Sum returns the ones' complement sum of src as CopySum does, without a copy.
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

// Write copies src, a slice of this process's own memory, to dst until one of them ends.
func (c *Copier) Write(dst []Segment, src []byte) (int, error) {
	if len(dst) == 1 {
		if n, err, done := c.behind(&dst[0], src[:min(len(src), int(dst[0].Len))], nil); done {
			return int(n), err
		}
	}
	n, err := c.copy(&cursor{segs: dst, access: Write}, &cursor{rest: src})
	return int(n), err
}

// View calls f with the memory of seg itself, in pieces of at most limit bytes, to the end or until an error of f,
// which View returns. The function f must not keep the slice. View counts no bytes. ErrBounds: limit is not positive,
// or seg is not in its region.
func (c *Copier) View(seg Segment, limit int, f func([]byte) error) (err error) {
	defer Recover(&err)
	if limit <= 0 {
		return fmt.Errorf("%w: view in pieces of %d bytes", ErrBounds, limit)
	}
	b, err := seg.bytes(Read) // a caller whose f writes has translated seg for Write
	if err != nil {
		return err
	}
	for len(b) > 0 {
		n := min(limit, len(b))
		// The function f may write to these bytes: see the comment in done.
		if err := f(b[:n:n]); err != nil {
			return err
		}
		b = b[n:]
	}
	return nil
}
