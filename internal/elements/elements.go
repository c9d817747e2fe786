// Package elements adds arrays of numbers, like a GPU's reduction kernel. Bytes are little endian.
//
// The package is not API (README, Stability).
package elements

import (
	"encoding/binary"
	"math"
)

// Type is the type of elements, numbered like devmem.Type.
type Type uint8

// Types of elements.
const (
	Int32    Type = 1 // two's complement, wraps around
	Float32  Type = 2 // IEEE 754 binary32
	BFloat16 Type = 3 // the upper half of a Float32
)

// Size returns an element's size in bytes; 0 for an unknown type.
func (t Type) Size() int {
	switch t {
	case Int32, Float32:
		return 4
	case BFloat16:
		return 2
	}
	return 0
}

var le = binary.LittleEndian

// Add adds src to dst, element by element, for as many whole elements as both have; with an unknown type it does
// nothing. dst and src may start at the same byte, but must not overlap otherwise.
func Add(t Type, dst, src []byte) {
	n := min(len(dst), len(src))
	dst, src = dst[:n], src[:n]
	switch t {
	case Int32:
		for len(dst) >= 8 && len(src) >= 8 { // two at a time, without a carry between them
			a, b := le.Uint64(dst), le.Uint64(src)
			const top = 1<<63 | 1<<31
			le.PutUint64(dst, (a&^top+b&^top)^(a^b)&top)
			dst, src = dst[8:], src[8:]
		}
		for len(dst) >= 4 && len(src) >= 4 {
			le.PutUint32(dst, le.Uint32(dst)+le.Uint32(src))
			dst, src = dst[4:], src[4:]
		}
	case Float32:
		for len(dst) >= 4 && len(src) >= 4 {
			le.PutUint32(dst, math.Float32bits(math.Float32frombits(le.Uint32(dst))+math.Float32frombits(le.Uint32(src))))
			dst, src = dst[4:], src[4:]
		}
	case BFloat16:
		for len(dst) >= 2 && len(src) >= 2 {
			le.PutUint16(dst, round(wide(le.Uint16(dst))+wide(le.Uint16(src))))
			dst, src = dst[2:], src[2:]
		}
	}
}

func wide(b uint16) float32 { return math.Float32frombits(uint32(b) << 16) }

// round returns the nearest bfloat16; of two equally near ones the even one. A NaN stays a NaN, and is quiet.
func round(f float32) uint16 {
	b := math.Float32bits(f)
	if f != f {
		return uint16(b>>16) | 0x40
	}
	return uint16((b + 0x7fff + b>>16&1) >> 16)
}
