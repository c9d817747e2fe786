package dma

import (
	"encoding/binary"
	"math/bits"
)

// sum64, copySum64 and add64 add little-endian 64-bit words with end-around carry. fold64 turns their results into
// sums of RFC 1071.

var le = binary.LittleEndian

// sum64 returns the sum of acc and b; zeros follow a last word that is not whole. Two chains of carries are faster than
// one.
func sum64(b []byte, acc uint64) uint64 {
	var acc2 uint64
	for len(b) >= 64 {
		var c, c2 uint64
		acc, c = bits.Add64(acc, le.Uint64(b[0:8]), 0)
		acc, c = bits.Add64(acc, le.Uint64(b[8:16]), c)
		acc, c = bits.Add64(acc, le.Uint64(b[16:24]), c)
		acc, c = bits.Add64(acc, le.Uint64(b[24:32]), c)
		acc += c // cannot carry: a chain that carries out leaves at most 2^64-2
		acc2, c2 = bits.Add64(acc2, le.Uint64(b[32:40]), 0)
		acc2, c2 = bits.Add64(acc2, le.Uint64(b[40:48]), c2)
		acc2, c2 = bits.Add64(acc2, le.Uint64(b[48:56]), c2)
		acc2, c2 = bits.Add64(acc2, le.Uint64(b[56:64]), c2)
		acc2 += c2
		b = b[64:]
	}
	acc = add64(acc, acc2)
	for len(b) >= 8 {
		acc = add64(acc, le.Uint64(b))
		b = b[8:]
	}
	var w uint64
	for i, v := range b {
		w |= uint64(v) << (8 * uint(i))
	}
	return add64(acc, w)
}

// copySum64 copies src to dst, which must be at least as long, and returns the sum of acc and the copied bytes. It
// reads each byte once: the sum is of the bytes that it stores in dst, even if src changes meanwhile.
func copySum64(dst, src []byte, acc uint64) uint64 {
	var acc2 uint64
	dst = dst[:len(src)]
	i := 0
	for ; i+64 <= len(src); i += 64 {
		var c, c2 uint64
		s, d := src[i:i+64:i+64], dst[i:i+64:i+64]
		w0, w1, w2, w3 := le.Uint64(s[0:8]), le.Uint64(s[8:16]), le.Uint64(s[16:24]), le.Uint64(s[24:32])
		acc, c = bits.Add64(acc, w0, 0)
		acc, c = bits.Add64(acc, w1, c)
		acc, c = bits.Add64(acc, w2, c)
		acc, c = bits.Add64(acc, w3, c)
		acc += c
		le.PutUint64(d[0:8], w0)
		le.PutUint64(d[8:16], w1)
		le.PutUint64(d[16:24], w2)
		le.PutUint64(d[24:32], w3)
		w4, w5, w6, w7 := le.Uint64(s[32:40]), le.Uint64(s[40:48]), le.Uint64(s[48:56]), le.Uint64(s[56:64])
		acc2, c2 = bits.Add64(acc2, w4, 0)
		acc2, c2 = bits.Add64(acc2, w5, c2)
		acc2, c2 = bits.Add64(acc2, w6, c2)
		acc2, c2 = bits.Add64(acc2, w7, c2)
		acc2 += c2
		le.PutUint64(d[32:40], w4)
		le.PutUint64(d[40:48], w5)
		le.PutUint64(d[48:56], w6)
		le.PutUint64(d[56:64], w7)
	}
	acc = add64(acc, acc2)
	for ; i+8 <= len(src); i += 8 {
		w := le.Uint64(src[i:])
		acc = add64(acc, w)
		le.PutUint64(dst[i:], w)
	}
	var w uint64
	for k := uint(0); i < len(src); k += 8 {
		v := src[i]
		w |= uint64(v) << k
		dst[i] = v
		i++
	}
	return add64(acc, w)
}

func add64(a, b uint64) uint64 {
	s, c := bits.Add64(a, b, 0)
	return s + c
}

// fold64 returns, for a sum of little-endian 64-bit words, the sum of the same bytes as big-endian 16-bit words, not
// inverted (RFC 1071).
func fold64(acc uint64) uint16 {
	acc = acc>>32 + acc&0xffffffff
	acc = acc>>32 + acc&0xffffffff
	return bits.ReverseBytes16(Fold(uint32(acc)))
}

// Checksum returns the ones' complement sum of b and initial, which is a sum of Checksum or Fold, or 0. If the length
// of b is odd, its last byte is the high half of a word: the bytes behind it cannot be added by another call.
func Checksum(b []byte, initial uint32) uint32 {
	s := uint64(initial) + uint64(fold64(sum64(b, 0)))
	return uint32(s) + uint32(s>>32)
}

// Fold folds a sum of Checksum to 16 bits, and does not invert it.
func Fold(sum uint32) uint16 {
	sum = sum>>16 + sum&0xffff
	sum = sum>>16 + sum&0xffff
	return uint16(sum)
}
