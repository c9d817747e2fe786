// Package sha256x16 computes sixteen SHA-256 digests at the same time (FIPS 180-4), one in each lane of AVX-512
// registers.
//
// The messages have one length, a multiple of 64 bytes, and the bytes of one Write lie at equal distances in memory.
// One goroutine at a time uses a State. If Available is false, Write panics, and Sums must not be called.
//
// The package is not API (README, Stability).
package sha256x16

import (
	"encoding/binary"
	"fmt"
)

// Lanes is the number of digests that a State computes at a time.
const Lanes = 16

const (
	blockLen = 64
	sumLen   = 32
)

// initial is the initial hash value of SHA-256 (FIPS 180-4, 5.3.3).
var initial = [8]uint32{0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19}

// constants are SHA-256's constants K (FIPS 180-4, 4.2.2).
var constants = [64]uint32{ //nolint:unused // blocks_amd64.s reads it
	0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
	0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
	0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
	0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
	0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
	0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
	0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
	0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2,
}

// bigEndian is the shuffle that reverses the bytes of each 32-bit word.
var bigEndian = func() (b [blockLen]byte) { //nolint:unused // blocks_amd64.s reads it
	for i := range b {
		b[i] = byte(i&^3 | 3 - i&3)
	}
	return b
}()

// State is the state of sixteen computations. Reset makes it ready for use.
type State struct {
	h [8][Lanes]uint32 // by word, then lane
	n uint64           // bytes written to each lane
}

// Reset starts sixteen new computations.
func (s *State) Reset() {
	for i := range s.h {
		for j := range s.h[i] {
			s.h[i][j] = initial[i]
		}
	}
	s.n = 0
}

// Write adds n bytes, a multiple of 64, to each lane: to lane i it adds b[i*stride:][:n]. It panics if b does not
// contain these bytes, if n is no multiple of 64, or if Available is false.
func (s *State) Write(b []byte, stride, n int) {
	if !Available || n < 0 || n%blockLen != 0 || stride < 0 || stride > len(b)/(Lanes-1) ||
		n > len(b)-(Lanes-1)*stride {
		panic(fmt.Sprintf("sha256x16: available: %t, %d bytes every %d of %d", Available, n, stride, len(b)))
	}
	if n > 0 {
		blocks(&s.h, &b[0], uint64(stride), uint64(n/blockLen))
		s.n += uint64(n)
	}
}

// Sums writes the digests to the first Lanes elements of out, which must have that many. Call Reset before the next
// Write.
func (s *State) Sums(out [][sumLen]byte) {
	var pad [blockLen]byte
	pad[0] = 0x80
	binary.BigEndian.PutUint64(pad[blockLen-8:], 8*s.n)
	blocks(&s.h, &pad[0], 0, 1)
	for i := range Lanes {
		for j := range s.h {
			binary.BigEndian.PutUint32(out[i][4*j:], s.h[j][i])
		}
	}
}
