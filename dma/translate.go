package dma

import (
	"errors"
	"fmt"
	"math"
)

// ErrUnmapped is the error for an address in no region.
var ErrUnmapped = errors.New("unmapped address")

// ErrMiss replaces ErrUnmapped if the regions are the entries of an IOTLB (Space.SetIOTLB).
var ErrMiss = errors.New("translation miss")

// ErrAccess is the error for an access that a region does not allow.
var ErrAccess = errors.New("access denied")

// ErrScattered is the error for memory in more segments than the caller accepts (TranslateMax).
var ErrScattered = errors.New("memory in too many pieces")

// Access is a device's kind of access to memory.
type Access uint8

// Kinds of access.
const (
	Read Access = iota
	Write
)

// String returns "read" for Read, else "write".
func (a Access) String() string {
	if a == Read {
		return "read"
	}
	return "write"
}

// AddrError is the error for an address that a device cannot use. Guests can cause many: the text is formatted
// only on demand.
type AddrError struct {
	Space  string
	IOVA   uint64 // the first address that cannot be used, or has no place (ErrScattered); for Pin, the range's start
	Len    uint64 // bytes wanted from IOVA on
	Access Access
	Err    error
}

// Error implements error.
func (e *AddrError) Error() string {
	return fmt.Sprintf("space %s: %v of %#x bytes at %#x: %v", e.Space, e.Access, e.Len, e.IOVA, e.Err)
}

// Unwrap returns Err: ErrUnmapped, ErrMiss, ErrAccess, ErrNotShared, ErrScattered or ErrBounds.
func (e *AddrError) Unwrap() error { return e.Err }

// maxSegment is the largest length of a segment in bytes.
const maxSegment = 1 << 30

// Translate appends to dst the segments of [iova, iova+n), and returns the longer list; a segment lies in one region.
// The caller is inside the space (Enter). An error is an *AddrError; then Translate returns dst itself.
func (s *Space) Translate(dst []Segment, iova, n uint64, a Access) ([]Segment, error) {
	return s.TranslateMax(dst, math.MaxInt, iova, n, a)
}

// TranslateMax is Translate for a result of at most limit segments, with the segments in dst; for more the
// error is ErrScattered. limit bounds time and memory, whatever regions the guest has made.
func (s *Space) TranslateMax(dst []Segment, limit int, iova, n uint64, a Access) ([]Segment, error) {
	return s.translate(s.table.Load(), dst, limit, iova, n, a)
}

// translate is TranslateMax with the table root, which was the space's at some time since Enter.
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
		iova += k // may wrap to 0
		for ; k > maxSegment; k -= maxSegment {
			if len(out)+1 >= limit {
				return dst, &AddrError{s.name, iova - k, n + k, a, ErrScattered}
			}
			out = append(out, Segment{r, off, maxSegment})
			off += maxSegment
		}
		out = append(out, Segment{r, off, uint32(k)})
	}
	return out, nil
}

func (s *Space) unmapped(iova, n uint64, a Access) error {
	if s.iotlb.Load() {
		return &AddrError{s.name, iova, n, a, ErrMiss}
	}
	return &AddrError{s.name, iova, n, a, ErrUnmapped}
}

// ReadAt fills dst with the bytes at iova, such as a structure that a device reads. The caller is inside the
// space (Enter). No Copier counts these bytes.
func (s *Space) ReadAt(dst []byte, iova uint64) (err error) {
	defer Recover(&err)
	t := NewTranslator(s)
	return t.ReadAt(dst, iova)
}

// Pin is a piece of a region. Its file stays mapped until Close, even if the space changes.
type Pin struct {
	file *File
	mem  []byte
}

// Pin returns [iova, iova+n), which must lie in one writable region, as memory, for rings. A function that accesses
// the memory defers Recover.
func (s *Space) Pin(iova, n uint64) (*Pin, error) {
	token := s.Enter()
	defer s.Leave(token)
	r := s.table.Load().lastBefore(iova)
	if r == nil {
		return nil, s.unmapped(iova, n, Write)
	}
	off, size := iova-r.iova, r.Size()
	switch {
	case off >= size:
		return nil, s.unmapped(iova, n, Write)
	case n > size-off:
		return nil, &AddrError{s.name, iova, n, Write, ErrBounds} // the range goes beyond the region's end
	case r.noAccess || r.readOnly:
		return nil, &AddrError{s.name, iova, n, Write, r.denied()}
	}
	return r.Pin(off, n) // until Leave the region has a reference to its file
}

// Pin is Space.Pin for [off, off+n) of the region, except that errors are no *AddrError. The caller keeps the region's
// file open during the call.
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

// Bytes returns the memory, which is the guest's, too. It is valid until Close.
func (p *Pin) Bytes() []byte { return p.mem }

// File returns the file that the memory lies in.
func (p *Pin) File() *File { return p.file }

// Close releases the memory. It is idempotent.
func (p *Pin) Close() {
	if p.mem != nil {
		p.mem = nil
		p.file.Close()
	}
}
