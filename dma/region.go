package dma

import (
	"errors"
	"fmt"
)

// ErrBounds is the error for bad bounds, such as a range that is not inside its region or file.
var ErrBounds = errors.New("out of bounds")

// Region is a contiguous piece of a File, a range of a Space without access, or a buffer of this process (NewBuffer).
// Where it lies and who may access it does not change; the bytes in it may.
type Region struct {
	mem      []byte
	file     *File  // nil: memory of this process, or noAccess
	off      uint64 // where the region begins in file
	iova     uint64
	size     uint64  // the region's length; with noAccess there is no mem
	buf      MemKind // kind of memory, if file is nil
	readOnly bool
	noAccess bool
	private  bool // true: noAccess is set because the peer has mapped the file privately
}

// NewBuffer makes a region of the bytes b of this process, with kind d (Wire, Host or Private). Memory outside the
// Go heap must stay mapped while the region is used.
func NewBuffer(b []byte, d MemKind) *Region {
	return &Region{mem: b, size: uint64(len(b)), buf: d}
}

// Size returns the region's length in bytes.
func (r *Region) Size() uint64 { return r.size }

// File returns the region's file, or nil.
func (r *Region) File() *File { return r.file }

// FileOffset returns the region's offset in its file; 0 without a file.
func (r *Region) FileOffset() uint64 { return r.off }

// IOVA returns the region's address in the space for which it was made; 0 if it was made for none.
func (r *Region) IOVA() uint64 { return r.iova }

func (r *Region) denied() error {
	if r.private {
		return ErrNotShared
	}
	return ErrAccess
}

func infosOf(regions []*Region) []RegionInfo {
	infos := make([]RegionInfo, len(regions))
	for i, r := range regions {
		infos[i] = RegionInfo{r.iova, r.Size(), r.file, r.off, r.readOnly, r.noAccess, r.private}
	}
	return infos
}

// Segment returns [off, off+n) of the region. It does not check the bounds.
func (r *Region) Segment(off uint64, n uint32) Segment { return Segment{Region: r, Off: off, Len: n} }

// memKind returns the kind of memory at off, and how many bytes from off on have it: in a file, the bytes beyond the
// region's end count, too.
func (r *Region) memKind(off uint64) (MemKind, uint64) {
	if r.file == nil {
		if off > uint64(len(r.mem)) {
			return r.buf, 0
		}
		return r.buf, uint64(len(r.mem)) - off
	}
	return r.file.MemKind(r.off + off)
}

// Segment is a piece of memory: Len bytes at Off of Region. A Segment that a Space or Translator has returned is
// valid until Space.Leave.
type Segment struct {
	Region *Region
	Off    uint64
	Len    uint32
}

// MemKind returns the kind of the first byte's memory, and how many bytes of the segment from there on have it.
func (s Segment) MemKind() (MemKind, uint32) {
	if s.Region == nil {
		return Private, s.Len
	}
	d, n := s.Region.memKind(s.Off)
	return d, uint32(min(n, uint64(s.Len)))
}

// GPU returns the id of the segment's GPU, or -1.
func (s Segment) GPU() int {
	if s.Region == nil || s.Region.file == nil {
		return -1
	}
	return s.Region.file.GPU()
}

// Node returns the NUMA node of the segment's RAM, or -1 if it is unknown (Space.SetNodes).
func (s Segment) Node() int {
	if s.Region == nil || s.Region.file == nil {
		return -1
	}
	return int(s.Region.file.node.Load()) - 1
}

func (s *Segment) bytes(a Access) ([]byte, error) {
	r := s.Region
	if r == nil {
		return nil, fmt.Errorf("%w: segment without a region", ErrBounds)
	}
	if r.file != nil {
		if err := r.file.usable(); err != nil {
			return nil, err
		}
	}
	if r.noAccess || a != Read && r.readOnly {
		return nil, fmt.Errorf("%w: %v at %#x", r.denied(), a, r.iova+s.Off)
	}
	size := uint64(len(r.mem))
	if s.Off > size || uint64(s.Len) > size-s.Off {
		return nil, fmt.Errorf("%w: segment [%#x, +%#x) of a region of %#x bytes", ErrBounds, s.Off, s.Len, size)
	}
	return r.mem[s.Off : s.Off+uint64(s.Len)], nil
}

// Len returns the number of bytes in segs.
func Len(segs []Segment) uint64 {
	var n uint64
	for i := range segs {
		n += uint64(segs[i].Len)
	}
	return n
}

// KeepSegments is the largest capacity of a list that Reuse always returns.
const KeepSegments = 128

// Reuse returns segs[:0], to be filled anew, or nil if the capacity of segs is above KeepSegments, but not the length:
// so room for more than KeepSegments segments is kept as long as each list needs so much.
func Reuse(segs []Segment) []Segment {
	if cap(segs) > KeepSegments && len(segs) <= KeepSegments {
		return nil
	}
	return segs[:0]
}

// Cut appends to dst the segments of the bytes [off, off+n) of segs, as far as these exist, and returns the longer
// list. dst must not share memory with segs.
func Cut(dst, segs []Segment, off, n uint64) []Segment {
	for _, s := range segs {
		if n == 0 {
			break
		}
		if off >= uint64(s.Len) {
			off -= uint64(s.Len)
			continue
		}
		s.Off += off
		s.Len = uint32(min(uint64(s.Len)-off, n))
		off = 0
		n -= uint64(s.Len)
		dst = append(dst, s)
	}
	return dst
}
