package gpumem

import (
	"encoding/binary"
	"math/bits"
)

var le = binary.LittleEndian

// Word i of the pattern, 8 bytes, little endian, is mix64(seed + (i+1)*step). This is splitmix64 (Steele, Lea,
// Flood 2014) with an index as state: unmix64, seed and stepInv
// give a word's index.
const (
	step    = 0x9E3779B97F4A7C15
	step2   = 2 * step & (1<<64 - 1)
	step3   = 3 * step & (1<<64 - 1)
	step4   = 4 * step & (1<<64 - 1)
	stepInv = 0xF1DE83E19937733D // step * stepInv is 1, modulo 2^64
	mul1    = 0xBF58476D1CE4E5B9
	mul1Inv = 0x96DE1B173F119089
	mul2    = 0x94D049BB133111EB
	mul2Inv = 0x319642B2D24D8EC3
)

func mix64(z uint64) uint64 {
	z = (z ^ z>>30) * mul1
	z = (z ^ z>>27) * mul2
	return z ^ z>>31
}

// unmix64 is the inverse of mix64.
func unmix64(z uint64) uint64 {
	z = (z ^ z>>31 ^ z>>62) * mul2Inv
	z = (z ^ z>>27 ^ z>>54) * mul1Inv
	return z ^ z>>30 ^ z>>60
}

func word(seed, i uint64) uint64 { return mix64(seed + (i+1)*step) }

// FillPattern writes the pattern of seed to b, from word number word on.
func FillPattern(b []byte, seed uint64, word uint64) {
	z := seed + word*step
	if n := uint64(len(b) / 64); vector && n > 0 {
		fill64(&b[0], n, z)
		b, z = b[64*n:], z+8*n*step
	}
	for len(b) >= 32 {
		le.PutUint64(b[0:8], mix64(z+step))
		le.PutUint64(b[8:16], mix64(z+step2))
		le.PutUint64(b[16:24], mix64(z+step3))
		z += step4
		le.PutUint64(b[24:32], mix64(z))
		b = b[32:]
	}
	for len(b) >= 8 {
		z += step
		le.PutUint64(b, mix64(z))
		b = b[8:]
	}
	if len(b) > 0 {
		var last [8]byte
		le.PutUint64(last[:], mix64(z+step))
		copy(b, last[:])
	}
}

// FillAt writes the pattern of seed to b, from the pattern's byte off on.
func FillAt(b []byte, seed uint64, off uint64) {
	if skip := off % 8; skip != 0 {
		var first [8]byte
		le.PutUint64(first[:], word(seed, off/8))
		n := copy(b, first[skip:])
		b, off = b[n:], off+uint64(n)
	}
	FillPattern(b, seed, off/8)
}

// MatchAt returns how many bytes at the start of b equal the pattern of seed from its byte off on.
func MatchAt(b []byte, seed uint64, off uint64) int {
	n := 0
	if skip := off % 8; skip != 0 {
		w := word(seed, off/8) >> (8 * skip)
		for ; n < len(b) && n < int(8-skip); n++ {
			if b[n] != byte(w>>(8*n)) {
				return n
			}
		}
		off += uint64(n)
	}
	z := seed + off/8*step
	if v := uint64(len(b)-n) / 64; vector && v > 0 {
		v = match64(&b[n], v, z)
		n, z = n+int(64*v), z+8*v*step
	}
	for ; len(b)-n >= 8; n += 8 {
		z += step
		if d := le.Uint64(b[n:]) ^ mix64(z); d != 0 {
			return n + bits.TrailingZeros64(d)/8
		}
	}
	w := mix64(z + step)
	for i := 0; n < len(b) && b[n] == byte(w>>(8*i)); i++ {
		n++
	}
	return n
}

// matchBefore returns how many bytes at the end of b equal the bytes of the pattern of seed before its byte off.
func matchBefore(b []byte, seed uint64, off uint64) int {
	n := 0
	for n < len(b) && uint64(n) < off {
		pos := off - uint64(n) - 1
		if b[len(b)-n-1] != byte(word(seed, pos/8)>>(8*(pos%8))) {
			break
		}
		n++
	}
	return n
}
