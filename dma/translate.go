package dma

import (
	"errors"
	"fmt"
	"math"
)

// ErrUnmapped is returned for an address that is in no region.
var ErrUnmapped = errors.New("unmapped address")

// ErrMiss is returned, in the place of ErrUnmapped, for an address that is in no region of an IOTLB
// (Space.SetIOTLB).
var ErrMiss = errors.New("translation miss")

// ErrAccess is returned for a write to a region that is read-only, or any use of one that is not accessible.
var ErrAccess = errors.New("access denied")

// ErrScattered is returned for a range that lies in more pieces than its user takes.
var ErrScattered = errors.New("memory in too many pieces")

// Access is what a device wants to do with memory.
type Access uint8

// Kinds of access.
const (
	Read  Access = iota // the device reads
	Write               // the device writes
)

// String returns "read" or "write".
func (a Access) String() string {
	if a == Read {
		return "read"
	}
	return "write"
}

// AddrError says which address could not be used. It formats itself only when asked, because guests cause it.
type AddrError struct {
	Space  string
	IOVA   uint64 // the first address that could not be used
	Len    uint64 // how many bytes were wanted from there on
	Access Access
	Err    error // ErrUnmapped, ErrMiss, ErrAccess, ErrNotShared, ErrBounds or ErrScattered
}

// Error implements error.
func (e *AddrError) Error() string {
	return fmt.Sprintf("space %s: %v of %#x bytes at %#x: %v", e.Space, e.Access, e.Len, e.IOVA, e.Err)
}

// Unwrap returns the sentinel.
func (e *AddrError) Unwrap() error { return e.Err }

// maxSegment is the longest segment that Translate makes; a multiple of every page size.
const maxSegment = 1 << 30

// Translate appends to dst the places of [iova, iova+n), across regions that touch, and never beyond one. The caller is
// inside the space. On an error, an *AddrError, dst comes back as it was.
func (s *Space) Translate(dst []Segment, iova, n uint64, a Access) ([]Segment, error) {
	return s.TranslateMax(dst, math.MaxInt, iova, n, a)
}

// TranslateMax is Translate into at most limit segments, those in dst before included. A range that
// would need more is ErrScattered, found before one more is made: limit bounds time and memory,
// however many regions the guest has made.
func (s *Space) TranslateMax(dst []Segment, limit int, iova, n uint64, a Access) ([]Segment, error) {
	return s.translate(s.table.Load(), dst, limit, iova, n, a)
}

// translate is TranslateMax by a table that was the space's when the caller was inside.
func (s *Space) translate(root *table, dst []Segment, limit int, iova, n uint64, a Access) ([]Segment, error) {
	out := dst
	t := root
	for i := t.find(iova); n > 0; i++ {
		if i < 0 || i >= len(t.regions) {
			if t, i = root.follow(t, iova); t == nil {
				return dst, s.unmapped(iova, n, a)
			}
		}
		r := t.regions[i]
		off, size := iova-r.iova, r.Size()
		if iova < r.iova || off >= size {
			return dst, s.unmapped(iova, n, a)
		}
		if r.noAccess || a != Read && r.readOnly {
			return dst, &AddrError{s.name, iova, n, a, r.denied()}
		}
		k := min(n, size-off)
		if len(out) >= limit {
			return dst, &AddrError{s.name, iova, n, a, ErrScattered}
		}
		n -= k
		iova += k // may wrap to 0 behind the last region: then there is no next one
		for ; k > maxSegment; k -= maxSegment {
			if len(out)+1 >= limit { // there is another one behind it
				return dst, &AddrError{s.name, iova - k, n + k, a, ErrScattered}
			}
			out = append(out, Segment{r, off, maxSegment})
			off += maxSegment
		}
		out = append(out, Segment{r, off, uint32(k)})
	}
	return out, nil
}

// unmapped is the error of an address that is in no region.
func (s *Space) unmapped(iova, n uint64, a Access) error {
	if s.iotlb.Load() {
		return &AddrError{s.name, iova, n, a, ErrMiss}
	}
	return &AddrError{s.name, iova, n, a, ErrUnmapped}
}

// ReadAt fills dst with what lies at iova, for structures that a device keeps a private copy of
// (descriptor tables). The caller is inside the space. Nothing is counted.
func (s *Space) ReadAt(dst []byte, iova uint64) (err error) {
	defer Recover(&err)
	var few [2]Segment
	segs, err := s.Translate(few[:0], iova, uint64(len(dst)), Read)
	for i := range segs {
		b, err := segs[i].bytes(Read)
		if err != nil {
			return err
		}
		dst = dst[copy(dst, b):]
	}
	return err
}

// Pin is a piece of a region whose file stays mapped until Close, whatever happens to the space.
type Pin struct {
	file *File
	mem  []byte
}

// Pin returns [iova, iova+n) as memory, for rings: it must lie in one region, which the device may write. The caller
// guards every access with Recover, and drops the pin when the space has changed and the address means something else.
func (s *Space) Pin(iova, n uint64) (*Pin, error) {
	token := s.Enter()
	defer s.Leave(token)
	r := s.table.Load().at(iova)
	if r == nil {
		return nil, s.unmapped(iova, n, Write)
	}
	off, size := iova-r.iova, r.Size()
	switch {
	case off >= size:
		return nil, s.unmapped(iova, n, Write)
	case n > size-off:
		return nil, &AddrError{s.name, iova, n, Write, ErrBounds} // the ring would cross a region's end
	case r.noAccess || r.readOnly:
		return nil, &AddrError{s.name, iova, n, Write, r.denied()}
	}
	if err := r.file.usable(); err != nil {
		return nil, err
	}
	r.file.hold() // the region has a reference until we leave
	return &Pin{file: r.file, mem: r.mem[off : off+n : off+n]}, nil
}

// Pin is Space.Pin of [off, off+n) of a region of a file, for who has the region itself, as a GPU's, and so its file
// open.
func (r *Region) Pin(off, n uint64) (*Pin, error) {
	switch {
	case off > r.Size() || n > r.Size()-off:
		return nil, fmt.Errorf("%w: pin of [%#x, +%#x) of a region of %#x bytes", ErrBounds, off, n, r.Size())
	case r.file == nil || r.noAccess || r.readOnly:
		return nil, fmt.Errorf("%w: pin of [%#x, +%#x)", ErrAccess, off, n)
	}
	if err := r.file.usable(); err != nil {
		return nil, err
	}
	r.file.hold()
	return &Pin{file: r.file, mem: r.mem[off : off+n : off+n]}, nil
}

// Bytes returns the memory. It is shared with the guest and must not be used after Close.
func (p *Pin) Bytes() []byte { return p.mem }

// File returns the file that the memory is in.
func (p *Pin) File() *File { return p.file }

// Close lets go of the memory. A second Close does nothing.
func (p *Pin) Close() {
	if p.mem != nil {
		p.mem = nil
		p.file.Close()
	}
}
