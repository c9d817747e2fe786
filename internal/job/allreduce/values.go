package allreduce

import (
	"bytes"
	"encoding/binary"
	"math"
	"slices"

	"vnic.dev/vnic/collective"
	"vnic.dev/vnic/devmem"
	"vnic.dev/vnic/internal/transfer"
)

// An element before an operation is a function of its type, the seed, the rank and the element's number. Sums of
// floating point numbers are neither NaN nor infinite: exponents are from -4 to 3.

// mix is splitmix64 (Steele and others, "Fast splittable pseudorandom number generators").
func mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

func value(t devmem.Type, seed uint64, rank int, i uint64) uint32 {
	h := mix(seed ^ mix(uint64(rank)+1) ^ i)
	if t == devmem.Int32 {
		return uint32(h)
	}
	// sign, an exponent from -4 to 3, 23 bits of mantissa
	bits := uint32(h>>32)&0x807fffff | (123+uint32(h&7))<<23
	if t == devmem.BFloat16 {
		return bits >> 16
	}
	return bits
}

// plus adds two elements: integers modulo 2^32, floating point numbers as float32 (IEEE 754), then rounded to
// their type.
func plus(t devmem.Type, a, b uint32) uint32 {
	switch t {
	case devmem.Int32:
		return a + b
	case devmem.Float32:
		return math.Float32bits(math.Float32frombits(a) + math.Float32frombits(b))
	}
	sum := math.Float32bits(math.Float32frombits(a<<16) + math.Float32frombits(b<<16))
	kept, rest := sum>>16, sum&0xffff
	if rest > 0x8000 || rest == 0x8000 && kept&1 == 1 { // round to the nearest, ties to even
		kept++
	}
	return kept
}

type expected struct {
	op    string
	t     devmem.Type
	seed  uint64
	ranks int
	root  int
	count uint64
	parts int
}

// part returns the part of channel c, and the number of its first element.
func (x *expected) part(c int) (e expected, first uint64) {
	e = *x
	e.parts = 1
	first, e.count = collective.Part(c, x.parts, x.count)
	return e, first
}

// partOf returns the part, of n parts of count elements, that has element i.
func partOf(i uint64, n int, count uint64) int {
	each, more := count/uint64(n), count%uint64(n)
	if long := more * (each + 1); i >= long {
		return int(more + (i-long)/each)
	}
	return int(i / (each + 1))
}

// share returns which elements of a rank are defined after the operation: [first, first+n).
func (x *expected) share(rank int) (first, n uint64) {
	if x.op == transfer.ReduceScatter {
		return collective.Part(rank, x.ranks, x.count)
	}
	return 0, x.count
}

// chunk returns which chunk has element i: a channel has as many chunks as ranks.
func (x *expected) chunk(i uint64) int {
	if x.parts > 1 {
		e, first := x.part(partOf(i, x.parts, x.count))
		return e.chunk(i - first)
	}
	return partOf(i, x.ranks, x.count)
}

// element returns element i after the operation, of any rank that has it.
func (x *expected) element(i uint64) uint32 {
	first := x.chunk(i) // the rank where an all-reduce's sum begins
	switch x.op {
	case transfer.Broadcast:
		return value(x.t, x.seed, x.root, i)
	case transfer.AllGather:
		return value(x.t, x.seed, first, i)
	case transfer.ReduceScatter:
		first++
	}
	sum := value(x.t, x.seed, first%x.ranks, i)
	for k := 1; k < x.ranks; k++ {
		sum = plus(x.t, sum, value(x.t, x.seed, (first+k)%x.ranks, i))
	}
	return sum
}

// passes returns how many bytes a rank sends to the next one in an operation.
func (x *expected) passes(rank int) (n uint64) {
	if x.parts > 1 {
		for c := range x.parts {
			e, _ := x.part(c)
			n += e.passes(rank)
		}
		return n
	}
	part := func(c int) uint64 {
		_, k := collective.Part(((c%x.ranks)+x.ranks)%x.ranks, x.ranks, x.count)
		return k * x.t.Size()
	}
	all := x.count * x.t.Size()
	switch {
	case x.ranks == 1:
		return 0
	case x.op == transfer.AllReduce:
		return 2*all - part(rank+1) - part(rank+2)
	case x.op == transfer.ReduceScatter: // all chunks but its own, which arrives last
		return all - part(rank)
	case x.op == transfer.AllGather: // all chunks but the next rank's own
		return all - part(rank+1)
	case (rank+1)%x.ranks == x.root:
		return 0
	}
	return all
}

func fill(b []byte, t devmem.Type, seed uint64, rank int, i uint64) {
	for element := range slices.Chunk(b, int(t.Size())) {
		put(element, t, value(t, seed, rank, i))
		i++
	}
}

func put(b []byte, t devmem.Type, bits uint32) {
	var word [4]byte
	binary.LittleEndian.PutUint32(word[:], bits)
	copy(b, word[:t.Size()])
}

// wrong counts the elements of b, from number i on, that differ from the expected ones.
func (x *expected) wrong(b []byte, i uint64) (n uint64) {
	var want [4]byte
	for got := range slices.Chunk(b, int(x.t.Size())) {
		put(want[:], x.t, x.element(i))
		if !bytes.Equal(got, want[:len(got)]) {
			n++
		}
		i++
	}
	return n
}
