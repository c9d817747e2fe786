package devmem

import (
	"context"
	"fmt"
	"math/bits"
	"syscall"
)

// Memory is what a program has the owner of device memory do with it: a few bytes looked at, as the heads of
// protocols, which lie in device memory with all else of a connection that is steered there; the fragments of a message
// put together; and sums. On hardware that is cudaMemcpy or GDRCopy, a copy kernel, and a reduction kernel.
//
// All offsets are from the start of the buffer, which may have been registered by any [Device] over the same memory.
// What is done to two buffers needs both on one GPU (EXDEV). Methods return when the memory is not touched any more:
// also when ctx ends, whose cause is then the error. They may be called from many goroutines; what they do to
// overlapping memory at the same time has any order. Who calls sees what a [Conn] has received; what was written is
// sent by a later SendDevmem.
//
// Errors: EFAULT (outside of the buffer; nothing beyond it was touched, what lies before may have been; also a buffer
// that is closed, where the owner knows), EXDEV, and those named below.
type Memory interface {
	// Look copies ranges of a buffer to dst, one behind the other. It is for what a CPU has to see: Stats tells how many
	// bytes that were. EINVAL: dst is not as long as the ranges are together.
	Look(ctx context.Context, dst []byte, b Buffer, ranges ...Range) error

	// LookEach copies the pieces of s to dst, one behind the other: as the heads of messages of one length, in one go.
	// EINVAL as for Look.
	LookEach(ctx context.Context, dst []byte, b Buffer, s Strided) error

	// Put copies src to the buffer from offset off on, as bytes that came in host memory (Linear). Get is the other
	// way around: for a baseline that takes payload through the host. Neither counts as looked at.
	Put(ctx context.Context, b Buffer, off uint64, src []byte) error
	Get(ctx context.Context, dst []byte, b Buffer, off uint64) error

	// Gather copies moves from one buffer to another, or within one, in their order. Source and destination of a move
	// must not overlap (any bytes come of it).
	Gather(ctx context.Context, dst, src Buffer, moves []Move) error

	// Reduce adds: dst[i] += src[i] for n elements of a type from these offsets on, which are multiples of the type's
	// size (EINVAL, as is an unknown type). The two may be the same, but not overlap otherwise (any sums come of it).
	Reduce(ctx context.Context, t Type, dst Buffer, dstOff uint64, src Buffer, srcOff uint64, n uint64) error

	// Stats is a snapshot.
	Stats() MemoryStats
}

// Strided are Count pieces of Len bytes: the first at Off, each Stride behind the start of the one before.
type Strided struct {
	Off, Stride uint64
	Len, Count  int
}

// Check says what is wrong with the pieces where n bytes are to hold them: EINVAL, or EFAULT for pieces that lie beyond
// all memory.
func (s Strided) Check(n int) error {
	if s.Len < 0 || s.Count < 0 || s.Len > 0 && s.Count > n/s.Len || s.Len*s.Count != n {
		return fmt.Errorf("%d pieces of %d bytes with room for %d: %w", s.Count, s.Len, n, syscall.EINVAL)
	}
	if n == 0 {
		return nil
	}
	over, last := bits.Mul64(s.Stride, uint64(s.Count-1))
	end, carry := bits.Add64(s.Off, last, 0)
	if _, more := bits.Add64(end, uint64(s.Len), 0); over != 0 || carry != 0 || more != 0 {
		return fmt.Errorf("%d pieces each %#x from %#x: beyond all memory: %w", s.Count, s.Stride, s.Off, syscall.EFAULT)
	}
	return nil
}

// CheckRanges says what is wrong with ranges where n bytes are to hold them: EINVAL.
func CheckRanges(n int, ranges []Range) error {
	all := uint64(0)
	for _, r := range ranges {
		sum, carry := bits.Add64(all, r.Len, 0)
		if carry != 0 || sum > uint64(n) {
			return fmt.Errorf("more than %d bytes with room for no more: %w", n, syscall.EINVAL)
		}
		all = sum
	}
	if all != uint64(n) {
		return fmt.Errorf("%d bytes with room for %d: %w", all, n, syscall.EINVAL)
	}
	return nil
}

// Move is a piece to copy, of Len bytes.
type Move struct{ Src, Dst, Len uint64 }

// Type is of the elements that Reduce adds.
type Type uint8

// Types of elements. Integers wrap around; sums of floating point are rounded to the nearest, ties to even, each by
// itself. A NaN stays one.
const (
	Int32    Type = 1 // two's complement, little endian
	Float32  Type = 2 // IEEE 754 binary32, little endian
	BFloat16 Type = 3 // the upper half of a Float32, little endian; added as Float32
)

// Size is an element's, in bytes; 0 for an unknown type.
func (t Type) Size() uint64 {
	switch t {
	case Int32, Float32:
		return 4
	case BFloat16:
		return 2
	}
	return 0
}

// Check says what is wrong with n elements from two offsets on: EINVAL, or EFAULT for more than there is of any memory.
func (t Type) Check(dst, src, n uint64) error {
	size := t.Size()
	switch {
	case size == 0:
		return fmt.Errorf("elements of type %d: %w", uint8(t), syscall.EINVAL)
	case dst%size != 0 || src%size != 0:
		return fmt.Errorf("%v elements from %#x and from %#x: not multiples of %d: %w", t, dst, src, size, syscall.EINVAL)
	case n > 1<<60:
		return fmt.Errorf("%d elements: %w", n, syscall.EFAULT)
	}
	return nil
}

// String is the type's name in nccl-tests' terms.
func (t Type) String() string {
	switch t {
	case Int32:
		return "int32"
	case Float32:
		return "float"
	case BFloat16:
		return "bfloat16"
	}
	return "unknown"
}

// MemoryStats counts bytes since the Memory was made.
type MemoryStats struct {
	Looked   uint64 // by Look and LookEach
	Put, Got uint64
	Gathered uint64
	Reduced  uint64 // of dst
}
