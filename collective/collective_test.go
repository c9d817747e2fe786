package collective

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"net"
	"net/netip"
	"sync"
	"syscall"
	"testing"
	"time"

	"vnic.dev/vnic/devmem"
	"vnic.dev/vnic/devmem/plain"
	"vnic.dev/vnic/internal/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

const (
	dataSize = 8 << 20
	poolSize = 1 << 20
)

type rank struct {
	gpu  *plain.GPU
	dev  *plain.Device
	mem  devmem.Memory
	data devmem.Buffer
	conf Config
	ring *Ring
}

// newRanks makes n ranks that have not joined.
func newRanks(t *testing.T, n int) []*rank {
	t.Helper()
	testkit.LeavesNothing(t)
	x, _ := testkit.Loopback()
	var list []*rank
	var addrs []netip.AddrPort
	for i := range n {
		addrs = append(addrs, netip.AddrPortFrom(x, uint16(5300+i)))
	}
	for i := range n {
		r := &rank{gpu: testkit.Must(plain.NewGPU(dataSize + poolSize + dataSize))(t)}
		r.dev = testkit.Must(plain.New(plain.Options{GPUs: []*plain.GPU{r.gpu}}))(t)
		r.mem = plain.NewMemory(r.gpu)
		t.Cleanup(func() {
			testkit.OK(t, r.dev.Close())
			testkit.OK(t, r.gpu.Close())
		})
		register := func(off, size uint64) devmem.Buffer { return testkit.Must(r.dev.Register(0, off, size))(t) }
		r.data = register(0, dataSize)
		r.conf = Config{Rank: i, Ranks: n, Device: r.dev, Memory: r.mem, Queue: 1, Pool: register(dataSize, poolSize),
			Scratch: register(dataSize+poolSize, dataSize), Listen: addrs[i], Next: addrs[(i+1)%n], Timeout: 20 * time.Second}
		list = append(list, r)
	}
	return list
}

func all(list []*rank, f func(i int, r *rank) error) []error {
	errs := make([]error, len(list))
	var work sync.WaitGroup
	for i, r := range list {
		work.Go(func() { errs[i] = f(i, r) })
	}
	work.Wait()
	return errs
}

func join(t *testing.T, list []*rank) {
	t.Helper()
	for _, err := range all(list, func(_ int, r *rank) (err error) {
		r.ring, err = Join(t.Context(), r.conf)
		return err
	}) {
		testkit.OK(t, err)
	}
	t.Cleanup(func() {
		for _, r := range list {
			testkit.OK(t, r.ring.Close())
		}
	})
}

// scalar returns the sums of n ranks' inputs, as a reference: it adds in the order of the ring.
func scalar(t devmem.Type, inputs [][]byte, n int) []byte {
	size := int(t.Size())
	out := make([]byte, len(inputs[0]))
	count := len(out) / size
	chunk, pos := 0, 0
	left := count / n
	if count%n > 0 {
		left++
	}
	for i := range count {
		for left == 0 {
			chunk++
			left = count / n
			if chunk < count%n {
				left++
			}
		}
		left--
		var bits uint32
		for k := range n {
			x := inputs[(chunk+k)%n][pos:]
			switch {
			case t == devmem.Int32:
				bits += binary.LittleEndian.Uint32(x)
			case t == devmem.Float32 && k == 0:
				bits = binary.LittleEndian.Uint32(x)
			case t == devmem.Float32:
				bits = math.Float32bits(math.Float32frombits(binary.LittleEndian.Uint32(x)) + math.Float32frombits(bits))
			case k == 0:
				bits = uint32(binary.LittleEndian.Uint16(x))
			default:
				sum := math.Float32frombits(uint32(binary.LittleEndian.Uint16(x))<<16) + math.Float32frombits(bits<<16)
				b := math.Float32bits(sum)
				low, rest := b>>16, b&0xffff
				if rest > 0x8000 || rest == 0x8000 && low&1 == 1 {
					low++
				}
				bits = low
			}
		}
		if size == 2 {
			binary.LittleEndian.PutUint16(out[pos:], uint16(bits))
		} else {
			binary.LittleEndian.PutUint32(out[pos:], bits)
		}
		pos += size
		_ = i
	}
	return out
}

// numbers fills memory with random elements.
func numbers(t devmem.Type, b []byte, seed uint64) {
	r := rand.New(rand.NewPCG(seed, 1))
	for off := 0; off+int(t.Size()) <= len(b); off += int(t.Size()) {
		f := math.Float32bits(float32(r.NormFloat64()))
		switch t {
		case devmem.Int32:
			binary.LittleEndian.PutUint32(b[off:], r.Uint32())
		case devmem.Float32:
			binary.LittleEndian.PutUint32(b[off:], f)
		default:
			binary.LittleEndian.PutUint16(b[off:], uint16(f>>16))
		}
	}
}

func wrong(t devmem.Type, got, want []byte) (n int) {
	for off := 0; off < len(want); off += int(t.Size()) {
		if string(got[off:off+int(t.Size())]) != string(want[off:off+int(t.Size())]) {
			n++
		}
	}
	return n
}

// reduce performs an all-reduce of random numbers, checks each rank's Stats, and returns the number of wrong elements
// at all ranks together.
func reduce(t *testing.T, list []*rank, typ devmem.Type, off, count uint64) (bad int) {
	t.Helper()
	n := count * typ.Size()
	var inputs [][]byte
	for i, r := range list {
		numbers(typ, r.gpu.Bytes()[off:off+n], uint64(100*count)+uint64(i))
		inputs = append(inputs, append([]byte(nil), r.gpu.Bytes()[off:off+n]...))
	}
	before := make([]Stats, len(list))
	for i, r := range list {
		before[i] = r.ring.Stats()
	}
	for _, err := range all(list, func(_ int, r *rank) error {
		return r.ring.AllReduce(t.Context(), typ, r.data, off, count)
	}) {
		testkit.OK(t, err)
	}
	want := scalar(typ, inputs, len(list))
	for i, r := range list {
		bad += wrong(typ, r.gpu.Bytes()[off:off+n], want)
		now := r.ring.Stats()
		// In each half a rank sends all chunks except one.
		parts := chunks(count, typ.Size(), len(list))
		sent := 2*n - parts[(i+1)%len(list)].n - parts[(i+2)%len(list)].n
		if len(list) == 1 {
			sent = 0
		}
		testkit.Equal(t, fmt.Sprintf("rank %d: bytes sent", i), now.Sent-before[i].Sent, sent)
		testkit.Equal(t, fmt.Sprintf("rank %d: bytes in host memory", i), now.Linear, 0)
	}
	return bad
}

// Invariant: collective: each rank has the sums, added in the order of the ring, to the bit.
func TestAllReduce(t *testing.T) {
	for _, n := range []int{1, 2, 3, 4, 8} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			list := newRanks(t, n)
			join(t, list)
			for _, typ := range []devmem.Type{devmem.Int32, devmem.Float32, devmem.BFloat16} {
				for _, count := range []uint64{0, 1, uint64(n - 1), uint64(n + 1), 1e6 + 1} {
					if bad := reduce(t, list, typ, 8, count); bad > 0 {
						t.Errorf("%v, %d elements: %d are wrong", typ, count, bad)
					}
				}
			}
		})
	}
}

// Invariant: collective: reduce-scatter and all-gather are the halves of an all-reduce; the parts
// cover each element once.
func TestHalves(t *testing.T) {
	for _, n := range []int{1, 2, 3, 5} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			list := newRanks(t, n)
			join(t, list)
			for _, count := range []uint64{0, 1, uint64(n + 1), 1e5 + 1} {
				want := make([]byte, 4*count)
				for i, r := range list {
					numbers(devmem.Int32, r.gpu.Bytes()[:4*count], count+uint64(i))
					for off := 0; off < len(want); off += 4 {
						binary.LittleEndian.PutUint32(want[off:], binary.LittleEndian.Uint32(want[off:])+
							binary.LittleEndian.Uint32(r.gpu.Bytes()[off:]))
					}
				}
				for _, err := range all(list, func(_ int, r *rank) error {
					return r.ring.ReduceScatter(t.Context(), devmem.Int32, r.data, 0, count)
				}) {
					testkit.OK(t, err)
				}
				next := uint64(0)
				for i, r := range list {
					first, k := Part(i, n, count)
					testkit.Equal(t, "the part's first element", first, next)
					next += k
					part := r.gpu.Bytes()[4*first:][:4*k]
					if bad := wrong(devmem.Int32, part, want[4*first:][:4*k]); bad > 0 {
						t.Errorf("%d elements: rank %d: %d of its part are wrong", count, i, bad)
					}
					keep := append([]byte(nil), part...)
					clear(r.gpu.Bytes()[:4*count]) // AllGather has to bring the other parts
					copy(part, keep)
				}
				testkit.Equal(t, "elements of all parts", next, count)
				for _, err := range all(list, func(_ int, r *rank) error {
					return r.ring.AllGather(t.Context(), devmem.Int32, r.data, 0, count)
				}) {
					testkit.OK(t, err)
				}
				for i, r := range list {
					if bad := wrong(devmem.Int32, r.gpu.Bytes()[:4*count], want); bad > 0 {
						t.Errorf("%d elements: rank %d: %d are wrong", count, i, bad)
					}
				}
			}
		})
	}
}

// Invariant: collective: a broadcast from any rank arrives at all others, and writes nowhere else.
func TestBroadcast(t *testing.T) {
	list := newRanks(t, 3)
	join(t, list)
	const off = 8
	for root := range list {
		for _, n := range []uint64{0, 2, pieceLen - 2, pieceLen, 3*pieceLen + 2} {
			for i, r := range list {
				numbers(devmem.BFloat16, r.gpu.Bytes()[:off+n+off], n+uint64(i))
			}
			want := append([]byte(nil), list[root].gpu.Bytes()[off:][:n]...)
			around := make([]string, len(list))
			edges := func(r *rank) string {
				return string(r.gpu.Bytes()[:off]) + string(r.gpu.Bytes()[off+n:][:off])
			}
			for i, r := range list {
				around[i] = edges(r)
			}
			for _, err := range all(list, func(_ int, r *rank) error {
				return r.ring.Broadcast(t.Context(), devmem.BFloat16, r.data, off, n/2, root)
			}) {
				testkit.OK(t, err)
			}
			for i, r := range list {
				if bad := wrong(devmem.BFloat16, r.gpu.Bytes()[off:][:n], want); bad > 0 || edges(r) != around[i] {
					t.Errorf("%d bytes from rank %d: rank %d: %d are wrong, or some beside them", n, root, i, bad)
				}
			}
		}
	}
	testkit.ErrorIs(t, list[0].ring.Broadcast(t.Context(), devmem.Int32, list[0].data, 0, 1, 3), syscall.EINVAL)
	testkit.ErrorIs(t, list[0].ring.AllGather(t.Context(), 9, list[0].data, 0, 1), syscall.EINVAL)
}

// sabotaged is a Memory that adds the first element twice.
type sabotaged struct{ devmem.Memory }

func (s sabotaged) Reduce(ctx context.Context, t devmem.Type, dst devmem.Buffer, dstOff uint64, src devmem.Buffer,
	srcOff uint64, n uint64) error {
	return errors.Join(s.Memory.Reduce(ctx, t, dst, dstOff, src, srcOff, n),
		s.Memory.Reduce(ctx, t, dst, dstOff, src, srcOff, min(n, 1)))
}

func TestSabotageIsSeen(t *testing.T) {
	list := newRanks(t, 3)
	list[1].conf.Memory = sabotaged{list[1].mem}
	join(t, list)
	if bad := reduce(t, list, devmem.Int32, 0, 1000); bad != 2*3 {
		t.Errorf("%d elements are wrong: two sums, at three ranks", bad)
	}
}

// The error of the next rank names the rank that has left. An operation of the rank
// that left binds nothing.
func TestRankThatLeaves(t *testing.T) {
	list := newRanks(t, 4)
	join(t, list)
	testkit.OK(t, list[2].ring.Close())
	errs := all(list, func(i int, r *rank) error {
		return r.ring.AllReduce(t.Context(), devmem.Float32, r.data, 0, 1000)
	})
	testkit.ErrorIs(t, errs[2], net.ErrClosed)
	testkit.Equal(t, "bindings after Close", len(list[2].dev.Stats().Bindings), 0)
	for _, i := range []int{0, 1, 3} {
		e := (*Error)(nil)
		if !errors.As(errs[i], &e) {
			t.Fatalf("rank %d: %v", i, errs[i])
		}
	}
	testkit.ErrorSays(t, errs[3], "rank 2: all-reduce, step 1 of 6: ")
}

// Ranks that wait for a rank that does not begin do not stall: it sends and acknowledges heartbeats.
func TestRankThatIsLate(t *testing.T) {
	testkit.Slow(t)
	list := newRanks(t, 3)
	for _, r := range list {
		r.conf.Timeout = 2 * time.Second
	}
	join(t, list)
	late := errors.New("late")
	ctx, cancel := context.WithCancelCause(t.Context())
	var work sync.WaitGroup
	errs := make([]error, 2)
	for i := range errs {
		work.Go(func() { errs[i] = list[i].ring.AllReduce(ctx, devmem.Int32, list[i].data, 0, dataSize/4) })
	}
	// Twelve heartbeats take longer than Timeout.
	testkit.Eventually(t, "heartbeats", func() bool { return list[0].ring.beats.Load() > 12 })
	cancel(late)
	work.Wait()
	for i := range errs {
		testkit.ErrorIs(t, errs[i], late)
	}
}

// Wrong arguments leave the ring usable.
func TestRefusals(t *testing.T) {
	list := newRanks(t, 2)
	join(t, list)
	r, ctx := list[0].ring, t.Context()
	small := testkit.Must(list[0].dev.Register(0, 0, 4096))(t)
	for _, c := range []struct {
		t          devmem.Type
		off, count uint64
		want       error
	}{
		{9, 0, 1, syscall.EINVAL}, {devmem.Float32, 2, 1, syscall.EINVAL}, {devmem.Float32, 4096, 1, syscall.EFAULT},
		{devmem.Float32, 0, 1025, syscall.EFAULT}, {devmem.Int32, 0, math.MaxUint64, syscall.EFAULT},
	} {
		testkit.ErrorIs(t, r.AllReduce(ctx, c.t, small, c.off, c.count), c.want)
	}
	for _, change := range []func(c *Config){
		func(c *Config) { c.Ranks = 0 }, func(c *Config) { c.Rank = 2 }, func(c *Config) { c.Rank = -1 },
		func(c *Config) { c.Ranks = 1025 }, func(c *Config) { c.Timeout = -1 }, func(c *Config) { c.Memory = nil },
	} {
		c := list[0].conf
		change(&c)
		testkit.ErrorIs(t, testkit.Err(Join(ctx, c)), syscall.EINVAL)
	}
	for _, r := range list {
		r.ring.c.Scratch = testkit.Must(r.dev.Register(0, dataSize+poolSize, 4096))(t)
	}
	testkit.ErrorIs(t, r.AllReduce(ctx, devmem.Int32, list[0].data, 0, 4096), syscall.ENOSPC)
	if bad := reduce(t, list, devmem.Int32, 0, 2048); bad > 0 {
		t.Errorf("%d are wrong", bad)
	}
}

// Join closes connections of programs that are no rank.
func TestJoin(t *testing.T) {
	list := newRanks(t, 2)
	nobody := errors.New("nobody came")
	ctx, cancel := context.WithCancelCause(t.Context())
	time.AfterFunc(10*time.Millisecond, func() { cancel(nobody) })
	testkit.ErrorIs(t, testkit.Err(Join(ctx, list[0].conf)), nobody)

	done := make(chan error, 1)
	go func() {
		var err error
		list[0].ring, err = Join(t.Context(), list[0].conf)
		done <- err
	}()
	for says := 0; says < 2; {
		c, err := net.Dial("tcp", list[0].conf.Listen.String())
		if err != nil {
			continue // no listener yet
		}
		testkit.Must(c.Write([]byte("GET / HTTP/1.0\r\n\r\n")))(t)
		for err == nil {
			_, err = c.Read(make([]byte, 1))
		}
		testkit.OK(t, c.Close())
		says++
	}
	list[1].ring = testkit.Must(Join(t.Context(), list[1].conf))(t)
	testkit.OK(t, <-done)
	if bad := reduce(t, list, devmem.Float32, 0, 100); bad > 0 {
		t.Errorf("%d are wrong", bad)
	}
	for _, r := range list {
		testkit.OK(t, r.ring.Close())
	}
}
