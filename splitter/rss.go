package splitter

import (
	"encoding/binary"
	"fmt"
	"math/bits"
)

// KeyLen is the length of a Toeplitz key in bytes.
const KeyLen = 40

// DefaultKey is the key of Microsoft's RSS verification suite.
var DefaultKey = [KeyLen]byte{
	0x6d, 0x5a, 0x56, 0xda, 0x25, 0x5b, 0x0e, 0xc2, 0x41, 0x67, 0x25, 0x3d, 0x43, 0xa3, 0x8f, 0xb0,
	0xd0, 0xca, 0x2b, 0xcb, 0xae, 0x7b, 0x30, 0xb4, 0x77, 0xcb, 0x2d, 0xa3, 0x80, 0x30, 0xf2, 0x0c,
	0x6a, 0x42, 0xb7, 0x3b, 0xbe, 0xac, 0x01, 0xfa,
}

// maxTable is the most entries of an indirection table (virtio's rss_max_indirection_table_length has 16 bits).
const maxTable = 1 << 15

// inputLen is the length of the longest input of the hash in bytes: two IPv6 addresses and two ports.
const inputLen = 36

// Toeplitz hashes a flow bit by bit: addresses, then ports. For the same key RSS.Hash returns the same
// value faster.
func Toeplitz(key *[KeyLen]byte, f *Flow) uint32 {
	var in [inputLen]byte
	n := f.input(&in)
	var hash uint32
	window := binary.BigEndian.Uint64(key[:8])
	for i, b := range in[:n] {
		for bit := range 8 {
			if b<<bit&0x80 != 0 {
				hash ^= uint32(window >> 32)
			}
			window <<= 1
		}
		if i+8 < KeyLen {
			window |= uint64(key[i+8])
		}
	}
	return hash
}

func (f *Flow) input(in *[inputLen]byte) int {
	n := 4
	if f.IPv6 {
		n = 16
	}
	copy(in[:n], f.Src[:n])
	copy(in[n:2*n], f.Dst[:n])
	binary.BigEndian.PutUint16(in[2*n:], f.SrcPort)
	binary.BigEndian.PutUint16(in[2*n+2:], f.DstPort)
	return 2*n + 4
}

// RSS spreads flows over queues. NewRSS makes it; nobody may change it after that.
type RSS struct {
	Key   [KeyLen]byte
	Table []uint16 // queue by the low bits of the hash; its length is a power of two

	nibble [2 * inputLen][16]uint32 // by position of a half byte in the input, and by its value: what Hash XORs
}

// NewRSS returns an RSS. It keeps table, whose length must be a power of two up to 32768.
func NewRSS(key [KeyLen]byte, table []uint16) (*RSS, error) {
	if n := len(table); n == 0 || n > maxTable || bits.OnesCount(uint(n)) != 1 {
		return nil, fmt.Errorf("indirection table of %d: not a power of two up to %d", len(table), maxTable)
	}
	r := &RSS{Key: key, Table: table}
	for i := range r.nibble {
		for v := range r.nibble[i] {
			for bit := range 4 {
				if v&(8>>bit) != 0 {
					r.nibble[i][v] ^= keyWindow(&key, 4*i+bit)
				}
			}
		}
	}
	return r, nil
}

func keyWindow(key *[KeyLen]byte, bit int) uint32 {
	var b [8]byte
	copy(b[:], key[bit/8:])
	return uint32(binary.BigEndian.Uint64(b[:]) << (bit % 8) >> 32)
}

// Hash returns the flow's Toeplitz hash.
func (r *RSS) Hash(f *Flow) uint32 {
	var hash uint32
	n := 4
	if f.IPv6 {
		n = 16
	}
	t := r.nibble[:]
	t = add(t, f.Src[:n], &hash)
	t = add(t, f.Dst[:n], &hash)
	ports := [4]byte{byte(f.SrcPort >> 8), byte(f.SrcPort), byte(f.DstPort >> 8), byte(f.DstPort)}
	add(t, ports[:], &hash)
	return hash
}

func add(t [][16]uint32, b []byte, hash *uint32) [][16]uint32 {
	x := *hash
	for len(b) > 0 && len(t) >= 2 {
		x ^= t[0][b[0]>>4] ^ t[1][b[0]&15]
		b, t = b[1:], t[2:]
	}
	*hash = x
	return t
}

// Queue returns the queue for a hash.
func (r *RSS) Queue(hash uint32) uint16 { return r.Table[hash&uint32(len(r.Table)-1)] }
