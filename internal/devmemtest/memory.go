package devmemtest

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"sync"
	"syscall"

	"vnic.dev/vnic/devmem"
	"vnic.dev/vnic/internal/testkit"
)

// MemoryWorld is the environment of a case of MemoryCases: two buffers of one GPU, each of at least
// MemorySize bytes, and their contents; and one buffer of another GPU (nil: there is none).
type MemoryWorld struct {
	Memory   devmem.Memory
	Buffers  [2]devmem.Buffer
	Other    devmem.Buffer
	Contents [2]Memory
}

// MemorySize is the minimum length of MemoryWorld.Buffers, in bytes.
const MemorySize = 4 << 20

// MemoryCase is one case of MemoryCases.
type MemoryCase struct {
	Name string
	run  func(e *memoryEnv)
}

// Run runs the case in w, whose Memory no other case has used.
func (c MemoryCase) Run(t T, w *MemoryWorld) {
	t.Helper()
	e := &memoryEnv{T: t, MemoryWorld: w, random: rand.New(rand.NewPCG(1, 2))}
	for i, c := range contents() {
		e.want[i] = bytes.Clone(c)
		testkit.Must(w.Contents[i].WriteAt(e.want[i], 0))(t)
	}
	c.run(e)
	e.compare()
}

var contents = sync.OnceValue(func() (list [2][]byte) {
	random := rand.New(rand.NewPCG(3, 4))
	for i := range list {
		list[i] = make([]byte, MemorySize)
		for off := 0; off < MemorySize; off += 8 {
			binary.LittleEndian.PutUint64(list[i][off:], random.Uint64())
		}
	}
	return list
})

// MemoryCases returns the suite of devmem.Memory. After each case the first MemorySize bytes of Buffers must be
// exactly the expected ones.
func MemoryCases() []MemoryCase {
	return []MemoryCase{
		{"look at ranges", lookRanges}, {"look at strides", lookStrided}, {"put and get", putGet}, {"gather", gather},
		{"reduce", reduce}, {"reduce in place", reduceInPlace}, {"beyond the buffer", beyond}, {"wrong arguments", wrong},
		{"two GPUs", twoGPUs}, {"ended context", ended},
	}
}

type memoryEnv struct {
	T
	*MemoryWorld
	want   [2][]byte // expected contents of the buffers
	random *rand.Rand
}

func (e *memoryEnv) compare() {
	e.Helper()
	for i, want := range e.want {
		got := make([]byte, len(want))
		testkit.Must(e.Contents[i].ReadAt(got, 0))(e.T)
		if bytes.Equal(got, want) {
			continue
		}
		for k := range want {
			if got[k] != want[k] {
				e.Fatalf("buffer %d, byte %#x: %#x, want %#x", i, k, got[k], want[k])
			}
		}
	}
}

func (e *memoryEnv) fails(err error, want syscall.Errno) {
	e.Helper()
	if !errors.Is(err, want) {
		e.Fatalf("%v: not %v", err, want)
	}
}

func lookRanges(e *memoryEnv) {
	ranges := []devmem.Range{{Off: 0, Len: 1}, {Off: 4095, Len: 2}, {Off: 70000, Len: 0}, {Off: 3, Len: 5000},
		{Off: MemorySize - 7, Len: 7}, {Off: 4095, Len: 2}}
	var want []byte
	for _, r := range ranges {
		want = append(want, e.want[1][r.Off:r.Off+r.Len]...)
	}
	got := make([]byte, len(want))
	testkit.OK(e.T, e.Memory.Look(e.Context(), got, e.Buffers[1], ranges...))
	testkit.Equal(e.T, "looked", string(got), string(want))
	testkit.Equal(e.T, "counted", e.Memory.Stats(), devmem.MemoryStats{Looked: uint64(len(want))})
	testkit.OK(e.T, e.Memory.Look(e.Context(), nil, e.Buffers[1]))
	many := make([]devmem.Range, 5000) // more than one job of package engine takes
	want = want[:0]
	for i := range many {
		many[i] = devmem.Range{Off: uint64(e.random.IntN(MemorySize - 3)), Len: uint64(e.random.IntN(4))}
		want = append(want, e.want[0][many[i].Off:many[i].Off+many[i].Len]...)
	}
	got = make([]byte, len(want))
	testkit.OK(e.T, e.Memory.Look(e.Context(), got, e.Buffers[0], many...))
	testkit.Equal(e.T, "many", string(got), string(want))
}

func lookStrided(e *memoryEnv) {
	for _, s := range []devmem.Strided{{Off: 5, Stride: 4120, Len: 24, Count: 900}, {Off: MemorySize - 24, Len: 24, Count: 1},
		{Off: 9, Stride: 3, Len: 8, Count: 100}, {Off: 0, Stride: 0, Len: 2, Count: 3}, {}} {
		var want []byte
		for i := range s.Count {
			off := s.Off + uint64(i)*s.Stride
			want = append(want, e.want[0][off:off+uint64(s.Len)]...)
		}
		got, before := make([]byte, len(want)), e.Memory.Stats().Looked
		testkit.OK(e.T, e.Memory.LookEach(e.Context(), got, e.Buffers[0], s))
		testkit.Equal(e.T, "looked", string(got), string(want))
		testkit.Equal(e.T, "counted", e.Memory.Stats().Looked-before, uint64(len(want)))
	}
}

func putGet(e *memoryEnv) {
	b := make([]byte, 3<<20)
	for i := range b {
		b[i] = byte(e.random.Uint32())
	}
	testkit.OK(e.T, e.Memory.Put(e.Context(), e.Buffers[0], 4097, b))
	copy(e.want[0][4097:], b)
	testkit.OK(e.T, e.Memory.Put(e.Context(), e.Buffers[0], MemorySize, nil))
	got := make([]byte, len(b))
	testkit.OK(e.T, e.Memory.Get(e.Context(), got, e.Buffers[0], 4097))
	testkit.Equal(e.T, "got", string(got), string(b))
	testkit.Equal(e.T, "counted", e.Memory.Stats(), devmem.MemoryStats{Put: uint64(len(b)), Got: uint64(len(b))})
}

func gather(e *memoryEnv) {
	var moves []devmem.Move
	all := uint64(0)
	for to := uint64(11); to < 2<<20; {
		n := uint64(e.random.IntN(2000))
		from := uint64(e.random.IntN(MemorySize - 2000))
		moves = append(moves, devmem.Move{Src: from, Dst: to, Len: n})
		copy(e.want[0][to:to+n], e.want[1][from:])
		to, all = to+n, all+n
	}
	testkit.OK(e.T, e.Memory.Gather(e.Context(), e.Buffers[0], e.Buffers[1], moves))
	e.compare()
	within := []devmem.Move{{Src: 0, Dst: 1 << 20, Len: 1 << 20}, {Src: 1 << 20, Dst: 3 << 20, Len: 100}}
	for _, v := range within {
		copy(e.want[1][v.Dst:v.Dst+v.Len], e.want[1][v.Src:])
		all += v.Len
	}
	testkit.OK(e.T, e.Memory.Gather(e.Context(), e.Buffers[1], e.Buffers[1], within))
	testkit.OK(e.T, e.Memory.Gather(e.Context(), e.Buffers[1], e.Buffers[0], nil))
	testkit.Equal(e.T, "counted", e.Memory.Stats(), devmem.MemoryStats{Gathered: all})
}

// sum is the reference for Reduce: it adds the first element of b to the first one of a.
func sum(t devmem.Type, a, b []byte) {
	le := binary.LittleEndian
	switch t {
	case devmem.Int32:
		le.PutUint32(a, uint32(int32(le.Uint32(a))+int32(le.Uint32(b))))
	case devmem.Float32:
		le.PutUint32(a, math.Float32bits(math.Float32frombits(le.Uint32(a))+math.Float32frombits(le.Uint32(b))))
	case devmem.BFloat16:
		le.PutUint16(a, nearest(float64(math.Float32frombits(uint32(le.Uint16(a))<<16))+
			float64(math.Float32frombits(uint32(le.Uint16(b))<<16))))
	}
}

// nearest returns the bfloat16 nearest to the float32 of a sum, the even one in a tie.
func nearest(sum float64) uint16 {
	f := float32(sum)
	low := uint16(math.Float32bits(f) >> 16) // towards zero
	high := low + 1
	value := func(b uint16) float64 { return float64(math.Float32frombits(uint32(b) << 16)) }
	switch {
	case math.IsNaN(sum) || math.IsInf(float64(f), 0) || value(low) == float64(f):
		return low
	case math.IsInf(value(high), 0): // round as if infinity were 2^128, the next number after the largest
		if math.Abs(float64(f)) >= math.Ldexp(2-math.Ldexp(1, -8), 127) {
			return high
		}
		return low
	}
	below, above := math.Abs(float64(f)-value(low)), math.Abs(value(high)-float64(f))
	if below < above || below == above && low&1 == 0 {
		return low
	}
	return high
}

// nan reports whether an element is a NaN. The bits of a sum that is a NaN are not specified.
func nan(t devmem.Type, b []byte) bool {
	switch t {
	case devmem.Float32:
		return math.IsNaN(float64(math.Float32frombits(binary.LittleEndian.Uint32(b))))
	case devmem.BFloat16:
		return math.IsNaN(float64(math.Float32frombits(uint32(binary.LittleEndian.Uint16(b)) << 16)))
	}
	return false
}

func (e *memoryEnv) reduced(t devmem.Type, dst int, dstOff uint64, src int, srcOff, n uint64) {
	e.Helper()
	size := t.Size()
	before := append([]byte(nil), e.want[src][srcOff:srcOff+n*size]...)
	got := make([]byte, n*size)
	testkit.Must(e.Contents[dst].ReadAt(got, int64(dstOff)))(e.T)
	for i := uint64(0); i < n*size; i += size {
		x := e.want[dst][dstOff+i : dstOff+i+size]
		sum(t, x, before[i:])
		if nan(t, x) && nan(t, got[i:]) {
			copy(x, got[i:i+size])
		}
	}
	e.compare()
}

func reduce(e *memoryEnv) {
	all := uint64(0)
	for _, t := range []devmem.Type{devmem.Int32, devmem.Float32, devmem.BFloat16} {
		size := t.Size()
		for _, n := range []uint64{0, 1, 3, 2047, 300001} {
			dstOff, srcOff := size*uint64(e.random.IntN(5000)), size*uint64(e.random.IntN(5000))
			testkit.OK(e.T, e.Memory.Reduce(e.Context(), t, e.Buffers[0], dstOff, e.Buffers[1], srcOff, n))
			e.reduced(t, 0, dstOff, 1, srcOff, n)
			all += n * size
		}
		last := uint64(MemorySize) - size
		testkit.OK(e.T, e.Memory.Reduce(e.Context(), t, e.Buffers[0], last, e.Buffers[1], last, 1))
		e.reduced(t, 0, last, 1, last, 1)
		all += size
	}
	// These values and their sums include ties of bfloat16, both signs of zero, denormals and infinities.
	edges := []float32{0, float32(math.Copysign(0, -1)), 1, -1, 1 << 8, 1<<8 + 2, 1.0 / 256, 3.0 / 256, -1.0 / 256,
		math.MaxFloat32, -math.MaxFloat32, float32(math.Inf(1)), float32(math.Inf(-1)), math.SmallestNonzeroFloat32,
		0x1p-126, 0xffp120, 0x1p119}
	for _, t := range []devmem.Type{devmem.Float32, devmem.BFloat16} {
		var a, b []byte
		for _, x := range edges {
			for _, y := range edges {
				if t == devmem.Float32 {
					a = binary.LittleEndian.AppendUint32(a, math.Float32bits(x))
					b = binary.LittleEndian.AppendUint32(b, math.Float32bits(y))
				} else {
					a = binary.LittleEndian.AppendUint16(a, uint16(math.Float32bits(x)>>16))
					b = binary.LittleEndian.AppendUint16(b, uint16(math.Float32bits(y)>>16))
				}
			}
		}
		for i, c := range [][]byte{a, b} {
			testkit.Must(e.Contents[i].WriteAt(c, 0))(e.T)
			copy(e.want[i], c)
		}
		n := uint64(len(a)) / t.Size()
		testkit.OK(e.T, e.Memory.Reduce(e.Context(), t, e.Buffers[0], 0, e.Buffers[1], 0, n))
		e.reduced(t, 0, 0, 1, 0, n)
		all += uint64(len(a))
	}
	testkit.Equal(e.T, "counted", e.Memory.Stats(), devmem.MemoryStats{Reduced: all})
}

func reduceInPlace(e *memoryEnv) {
	testkit.OK(e.T, e.Memory.Reduce(e.Context(), devmem.Int32, e.Buffers[0], 8, e.Buffers[0], 1<<20, 1000))
	e.reduced(devmem.Int32, 0, 8, 0, 1<<20, 1000)
	testkit.OK(e.T, e.Memory.Reduce(e.Context(), devmem.Int32, e.Buffers[0], 4096, e.Buffers[0], 4096, 5))
	e.reduced(devmem.Int32, 0, 4096, 0, 4096, 5)
}

func beyond(e *memoryEnv) {
	m, ctx, b := e.Memory, e.Context(), e.Buffers[0]
	size, most := b.Size(), uint64(math.MaxUint64)
	one := make([]byte, 8)
	for _, off := range []uint64{size - 7, size, size + 1, most - 7, most} {
		e.fails(m.Look(ctx, one, b, devmem.Range{Off: off, Len: 8}), syscall.EFAULT)
		e.fails(m.Put(ctx, b, off, one), syscall.EFAULT)
		e.fails(m.Get(ctx, one, b, off), syscall.EFAULT)
		e.fails(m.Gather(ctx, b, b, []devmem.Move{{Src: off, Dst: 0, Len: 8}}), syscall.EFAULT)
		e.fails(m.Gather(ctx, b, b, []devmem.Move{{Src: 0, Dst: off, Len: 8}}), syscall.EFAULT)
	}
	for _, off := range []uint64{size - 4, size, most - 7} {
		e.fails(m.Reduce(ctx, devmem.Int32, b, off, b, 0, 2), syscall.EFAULT)
		e.fails(m.Reduce(ctx, devmem.Int32, b, 0, b, off, 2), syscall.EFAULT)
	}
	e.fails(m.Reduce(ctx, devmem.Int32, b, 0, b, 0, most/4+2), syscall.EFAULT) // 4 bytes each: more than 64 bits can count
	for _, s := range []devmem.Strided{{Off: 0, Stride: size/2 - 3, Len: 8, Count: 3}, {Off: 0, Stride: most / 2, Len: 8, Count: 3},
		{Off: size - 8, Stride: 1, Len: 8, Count: 3}, {Off: most - 3, Stride: 0, Len: 8, Count: 3}} {
		e.fails(m.LookEach(ctx, make([]byte, 24), b, s), syscall.EFAULT)
	}
}

func wrong(e *memoryEnv) {
	m, ctx, b := e.Memory, e.Context(), e.Buffers[0]
	e.fails(m.Look(ctx, make([]byte, 3), b, devmem.Range{Off: 0, Len: 4}), syscall.EINVAL)
	e.fails(m.Look(ctx, make([]byte, 5), b, devmem.Range{Off: 0, Len: 4}), syscall.EINVAL)
	e.fails(m.Look(ctx, make([]byte, 1), b, devmem.Range{Len: math.MaxUint64}, devmem.Range{Len: 2}), syscall.EINVAL)
	for _, s := range []devmem.Strided{{Len: 2, Count: 2}, {Len: -1, Count: -3}, {Len: 1 << 40, Count: 1 << 40},
		{Len: -3, Count: -1}} {
		e.fails(m.LookEach(ctx, make([]byte, 3), b, s), syscall.EINVAL)
	}
	for _, t := range []devmem.Type{0, 4, 255} {
		e.fails(m.Reduce(ctx, t, b, 0, b, 8, 1), syscall.EINVAL)
	}
	e.fails(m.Reduce(ctx, devmem.Float32, b, 2, b, 8, 1), syscall.EINVAL)
	e.fails(m.Reduce(ctx, devmem.BFloat16, b, 2, b, 9, 1), syscall.EINVAL)
	testkit.Equal(e.T, "counted", m.Stats(), devmem.MemoryStats{})
}

func twoGPUs(e *memoryEnv) {
	if e.Other == nil {
		return
	}
	m, ctx := e.Memory, e.Context()
	e.fails(m.Gather(ctx, e.Buffers[0], e.Other, []devmem.Move{{Len: 1}}), syscall.EXDEV)
	e.fails(m.Reduce(ctx, devmem.Int32, e.Other, 0, e.Buffers[0], 0, 1), syscall.EXDEV)
}

func ended(e *memoryEnv) {
	why := fmt.Errorf("enough")
	ctx, cancel := context.WithCancelCause(e.Context())
	cancel(why)
	m, b := e.Memory, e.Buffers[0]
	one := make([]byte, 4)
	for i, err := range []error{
		m.Look(ctx, one, b, devmem.Range{Len: 4}), m.LookEach(ctx, one, b, devmem.Strided{Len: 4, Count: 1}),
		m.Put(ctx, b, 0, one), m.Get(ctx, one, b, 0), m.Gather(ctx, b, b, []devmem.Move{{Src: 8, Len: 4}}),
		m.Reduce(ctx, devmem.Int32, b, 0, b, 8, 1),
	} {
		if !errors.Is(err, why) {
			e.Fatalf("call %d: %v", i, err)
		}
	}
}
