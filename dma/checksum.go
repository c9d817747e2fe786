package dma

import (
	"encoding/binary"
	"math/bits"
)

// Ones' complement sums (RFC 1071) are made of little-endian 64-bit words with end-around carry and turned into the
// network's order at the end: the sum does not care about the order of bytes, nor about the width of words.

var le = binary.LittleEndian

// sum64 adds b, padded with a zero byte if odd, to acc.
func sum64(b []byte, acc uint64) uint64 {
	var c uint64
	for len(b) >= 64 {
		acc, c = bits.Add64(acc, le.Uint64(b[0:8]), 0)
		acc, c = bits.Add64(acc, le.Uint64(b[8:16]), c)
		acc, c = bits.Add64(acc, le.Uint64(b[16:24]), c)
		acc, c = bits.Add64(acc, le.Uint64(b[24:32]), c)
		acc, c = bits.Add64(acc, le.Uint64(b[32:40]), c)
		acc, c = bits.Add64(acc, le.Uint64(b[40:48]), c)
		acc, c = bits.Add64(acc, le.Uint64(b[48:56]), c)
		acc, c = bits.Add64(acc, le.Uint64(b[56:64]), c)
		acc += c // cannot carry: a sum that carried is at most 2^64-2
		b = b[64:]
	}
	for len(b) >= 8 {
		acc, c = bits.Add64(acc, le.Uint64(b), 0)
		acc += c
		b = b[8:]
	}
	return tail(b, acc)
}

// tail adds the last, fewer than 8, bytes.
func tail(b []byte, acc uint64) uint64 {
	var w uint64
	for i, v := range b {
		w |= uint64(v) << (8 * uint(i))
	}
	return add64(acc, w)
}

func add64(a, b uint64) uint64 {
	s, c := bits.Add64(a, b, 0)
	return s + c
}

// copySum64 copies src to dst, which is as long, and adds the bytes that it copied to acc.
func copySum64(dst, src []byte, acc uint64) uint64 {
	copy(dst, src)
	return sum64(dst[:len(src)], acc)
}

// fold64 makes 16 bits of a sum of little-endian words, in network order.
func fold64(acc uint64) uint16 {
	acc = acc>>32 + acc&0xffffffff
	acc = acc>>32 + acc&0xffffffff
	return bits.ReverseBytes16(Fold(uint32(acc)))
}

// Checksum adds the ones' complement sum of b to initial, a sum that Checksum or Fold returned, or 0. An odd last byte
// is the high half of its word: what comes after it must be added at an even place.
func Checksum(b []byte, initial uint32) uint32 {
	s := uint64(initial) + uint64(fold64(sum64(b, 0)))
	return uint32(s) + uint32(s>>32)
}

// Fold makes 16 bits of a sum, not inverted.
func Fold(sum uint32) uint16 {
	sum = sum>>16 + sum&0xffff
	sum = sum>>16 + sum&0xffff
	return uint16(sum)
}
