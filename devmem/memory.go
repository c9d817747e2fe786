package devmem

import (
	"context"
	"fmt"
	"math/bits"
	"syscall"
)

// Memory performs operations on device memory for a program that cannot, or should not, access the bytes
// itself: to copy bytes from and to host memory, to put fragments of a message together, and to add numbers.
//
// Offsets are from the start of the buffer; any [Device] over the same memory may have registered the buffer.
// Operations on two buffers need both on one GPU (else EXDEV). A method returns when it no longer accesses the
// memory; if the end of ctx stopped it, its error wraps ctx's cause. Several goroutines may call methods; the order of
// concurrent operations on the same memory is unspecified, and may differ from byte to byte. An operation sees the data
// that RecvDevmem has returned before, and a later SendDevmem sends the result.
//
// EFAULT means that a range is outside the buffer: the operation accesses nothing outside, but may have accessed
// bytes inside.
type Memory interface {
	// Look copies ranges of a buffer to dst, one after another. EINVAL: dst is not as long as all ranges together.
	Look(ctx context.Context, dst []byte, b Buffer, ranges ...Range) error

	// LookEach is Look for the pieces of s.
	LookEach(ctx context.Context, dst []byte, b Buffer, s Strided) error

	// Put copies src, from host memory, to the buffer from offset off on. Get copies len(dst) bytes in the other
	// direction.
	Put(ctx context.Context, b Buffer, off uint64, src []byte) error
	Get(ctx context.Context, dst []byte, b Buffer, off uint64) error

	// Gather copies the moves' pieces from src to dst, in the moves' order. If source and destination of a move
	// overlap, the copied bytes are unspecified.
	Gather(ctx context.Context, dst, src Buffer, moves []Move) error

	// Reduce adds: dst[i] += src[i] for n elements of type t, from byte offsets dstOff and srcOff on. EINVAL: an
	// offset is not a multiple of the type's size, or the type is unknown. The two ranges may be the same; if they
	// overlap otherwise, the sums are unspecified.
	Reduce(ctx context.Context, t Type, dst Buffer, dstOff uint64, src Buffer, srcOff uint64, n uint64) error

	Stats() MemoryStats
}

// Strided is Count pieces of Len bytes: the first at Off, their starts Stride apart.
type Strided struct {
	Off, Stride uint64
	Len, Count  int
}

// Check returns EINVAL if the pieces do not exactly fill n bytes, and EFAULT if their offsets exceed
// 64 bits.
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

// CheckRanges returns EINVAL if the ranges do not exactly fill n bytes.
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

// Move is a piece of Len bytes to copy, from offset Src of one buffer to offset Dst of another or the same one.
type Move struct{ Src, Dst, Len uint64 }

// Type is the type of Reduce's elements.
type Type uint8

// Types of elements. Sums of integers wrap around; sums of floating-point numbers are rounded to nearest, ties to
// even.
const (
	Int32    Type = 1 // two's complement, little endian
	Float32  Type = 2 // IEEE 754 binary32, little endian
	BFloat16 Type = 3 // the upper half of a Float32; a sum is rounded to Float32, and then to BFloat16
)

// Size returns the size of an element in bytes; 0 for an unknown type.
func (t Type) Size() uint64 {
	switch t {
	case Int32, Float32:
		return 4
	case BFloat16:
		return 2
	}
	return 0
}

// Check returns EINVAL if t is unknown, or if dst or src, offsets in bytes, is not a multiple of t's size; and EFAULT
// if n, the number of elements, exceeds 1<<60.
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

// String returns the type's name in nccl-tests, or "unknown".
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

// MemoryStats counts the bytes that a Memory's methods have processed.
type MemoryStats struct {
	Looked   uint64 // by Look and LookEach
	Put, Got uint64
	Gathered uint64
	Reduced  uint64 // bytes of dst
}
