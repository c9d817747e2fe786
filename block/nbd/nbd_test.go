package nbd

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"vnic.dev/vnic/block"
	"vnic.dev/vnic/devmem"
	"vnic.dev/vnic/devmem/plain"
	"vnic.dev/vnic/internal/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

const (
	guard  = 64 << 10 // bytes before, and after, the data that must not change
	poison = 0xa5
)

// rig is a server, and a client's memory: guard, data, guard, pool.
type rig struct {
	s    *server
	gpu  *plain.GPU
	dev  *plain.Device
	conf Config
	size int    // of the data
	want []byte // expected memory, except the pool
}

var checked sync.Map

func newRig(t testing.TB, s *server, size, pool uint64) *rig {
	t.Helper()
	if _, again := checked.LoadOrStore(t, true); !again {
		testkit.LeavesNothing(t)
		t.Cleanup(func() { checked.Delete(t) })
	}
	s.start(t)
	r := &rig{s: s, gpu: testkit.Must(plain.NewGPU(guard + size + guard + pool))(t), size: int(size)}
	r.dev = testkit.Must(plain.New(plain.Options{GPUs: []*plain.GPU{r.gpu}}))(t)
	t.Cleanup(func() {
		testkit.OK(t, r.dev.Close())
		testkit.OK(t, r.gpu.Close())
	})
	b := r.gpu.Bytes()
	for n := copy(b, bytes.Repeat([]byte{poison}, guard)); n < len(b); n *= 2 {
		copy(b[n:], b[:n])
	}
	r.want = bytes.Clone(b[:guard+size+guard])
	r.conf = Config{Device: r.dev, Memory: plain.NewMemory(r.gpu), Server: s.addr, Export: "disk", Queue: 1,
		Data: testkit.Must(r.dev.Register(0, guard, size))(t),
		Pool: testkit.Must(r.dev.Register(0, guard+size+guard, pool))(t), Depth: 64, Timeout: 20 * time.Second}
	return r
}

func (r *rig) open(t testing.TB) *Device {
	t.Helper()
	d := testkit.Must(Open(t.Context(), r.conf))(t)
	t.Cleanup(func() { testkit.OK(t, d.Close()) })
	return d
}

func (r *rig) memory() []byte { return r.gpu.Bytes()[guard : guard+r.size] }

// read stores in want the data that o reads from content.
func (r *rig) read(o block.Op, content []byte) {
	copy(r.want[guard+o.Mem:], content[o.Off:o.Off+o.Len])
}

// check fails the test if the GPU's memory before the pool differs from want.
func (r *rig) check(t testing.TB) {
	t.Helper()
	got := r.gpu.Bytes()[:len(r.want)]
	if bytes.Equal(got, r.want) {
		return
	}
	n, first := 0, -1
	for i := range got {
		if got[i] != r.want[i] {
			if n++; first < 0 {
				first = i
			}
		}
	}
	t.Errorf("%d bytes of memory are wrong, the first at %#x of the data: %#x, want %#x", n, first-guard, got[first],
		r.want[first])
}

func give(ops []block.Op) func() (block.Op, bool) {
	return func() (block.Op, bool) {
		if len(ops) == 0 {
			return block.Op{}, false
		}
		o := ops[0]
		ops = ops[1:]
		return o, true
	}
}

func all(t testing.TB, d *Device, depth int, ops []block.Op) {
	t.Helper()
	seen := map[block.Op]int{}
	testkit.OK(t, d.Do(t.Context(), depth, give(ops), func(x block.Done) {
		seen[x.Op]++
		if x.Err != nil || x.Took <= 0 {
			t.Errorf("%v took %v: %v", x.Op, x.Took, x.Err)
		}
	}))
	for _, o := range ops {
		if seen[o] == 0 {
			t.Errorf("%v was not done", o)
		}
		seen[o]--
	}
}

// readsOf returns n reads of length bytes from random places, to memory with gaps of 3 bytes.
func readsOf(n int, length, store uint64, seed uint64) (ops []block.Op) {
	x := rand.New(rand.NewPCG(seed, 2))
	for i := range n {
		ops = append(ops, block.Op{Off: x.Uint64N(store - length + 1), Len: length, Mem: 1 + uint64(i)*(length+3)})
	}
	return ops
}

// Invariant: nbd: Reads store their data at its place in device memory, and no other byte changes.
func TestReads(t *testing.T) {
	const store = 3<<20 + 5
	for _, length := range []uint64{1, 15, 16, 512, 4080, 4095, 4096, 4097, 12345, 128 << 10, 1 << 20} {
		for _, depth := range []int{1, 3, 64} {
			t.Run(fmt.Sprintf("%d bytes, depth %d", length, depth), func(t *testing.T) {
				n := int(max(4, min(256, 4<<20/length)))
				s := &server{store: pattern(store), minBlock: 1, maxPayload: 32 << 20, batch: depth, reads: n,
					seed: length}
				r := newRig(t, s, 8<<20, 1<<20)
				d := r.open(t)
				ops := readsOf(n, length, store, uint64(depth))
				for _, o := range ops {
					r.read(o, s.store)
				}
				all(t, d, depth, ops)
				r.check(t)
				st := d.Stats()
				testkit.Equal(t, "bytes read", st.Read, uint64(n)*length)
				testkit.Equal(t, "replies", st.Messages, uint64(n))
				testkit.Equal(t, "bytes looked at", st.Looked, uint64(n)*16)
				testkit.Equal(t, "bytes in host memory", st.HostBytes, 0)
				if st.Looks > st.Messages {
					t.Errorf("%d looks at %d replies", st.Looks, st.Messages)
				}
				if length == 128<<10 && st.Looked*1000 > st.Read {
					t.Errorf("%d bytes were looked at for %d that were read", st.Looked, st.Read)
				}
				testkit.Equal(t, "bytes that the memory gathered", r.conf.Memory.Stats().Gathered, st.Read)
			})
		}
	}
}

// Reads of several lengths are mixed, with a small pool.
func TestReadsOfSeveralLengths(t *testing.T) {
	const store = 1 << 20
	s := &server{store: pattern(store), minBlock: 1, maxPayload: 32 << 20, seed: 4}
	r := newRig(t, s, 16<<20, 16*devmem.PageSize)
	d := r.open(t)
	x := rand.New(rand.NewPCG(9, 9))
	for _, depth := range []int{1, 5, 64, 1000} {
		var ops []block.Op
		mem := uint64(0)
		for range 200 {
			o := block.Op{Len: 1 + x.Uint64N(60000), Mem: mem}
			if x.IntN(3) > 0 {
				o.Len = 4096
			}
			o.Off = x.Uint64N(store - o.Len)
			mem += o.Len + x.Uint64N(3)
			r.read(o, s.store)
			ops = append(ops, o)
		}
		all(t, d, depth, ops)
		r.check(t)
	}
	testkit.Equal(t, "bytes looked at", d.Stats().Looked, 16*d.Stats().Messages)
}

// gate is a Memory whose first Look closes came, and waits until open is closed.
type gate struct {
	devmem.Memory
	first sync.Once
	came  chan struct{}
	open  chan struct{}
}

func (g *gate) Look(ctx context.Context, dst []byte, b devmem.Buffer, ranges ...devmem.Range) error {
	g.first.Do(func() {
		close(g.came)
		<-g.open
	})
	return g.Memory.Look(ctx, dst, b, ranges...)
}

func TestHeadsAreLookedAtTogether(t *testing.T) {
	const n = 32
	s := &server{store: pattern(1 << 20), batch: n, reads: n}
	r := newRig(t, s, 1<<20, 1<<20)
	g := &gate{Memory: r.conf.Memory, came: make(chan struct{}), open: make(chan struct{})}
	r.conf.Memory = g
	d := r.open(t)
	var ops []block.Op
	for i := range uint64(n) {
		ops = append(ops, block.Op{Off: i * 4096, Len: 4096, Mem: i * 4096})
		r.read(ops[i], s.store)
	}
	go func() {
		<-g.came
		testkit.Eventually(t, "all replies in the pool", func() bool {
			pages := 0
			for _, b := range r.dev.Stats().Bindings {
				pages += b.Queued + b.Held
			}
			return pages > n
		})
		close(g.open)
	}()
	all(t, d, n, ops)
	r.check(t)
	if st := d.Stats(); st.Messages != n || st.Looks > n/4 {
		t.Errorf("%d looks at %d replies", st.Looks, st.Messages)
	}
}

// Invariant: nbd: A write stores the bytes of device memory at its place on the server and nowhere
// else.
func TestWrites(t *testing.T) {
	const store = 4 << 20
	for _, copied := range []bool{false, true} {
		for _, length := range []uint64{1, 512, 4097, 128 << 10, 1 << 20} {
			for _, depth := range []int{1, 3, 64} {
				t.Run(fmt.Sprintf("%d bytes, depth %d, copy %v", length, depth, copied), func(t *testing.T) {
					n := int(max(4, min(64, 3<<20/length)))
					s := &server{store: make([]byte, store), minBlock: 1, maxPayload: 32 << 20, batch: depth, writes: n,
						seed: 5}
					r := newRig(t, s, 8<<20, 1<<20)
					r.conf.Copy = copied
					copy(r.want[guard:], pattern(8<<20))
					copy(r.memory(), pattern(8<<20))
					d := r.open(t)
					want := make([]byte, store)
					var ops []block.Op
					for i := range uint64(n) {
						o := block.Op{Write: true, Off: i * (length + 1) % (store - length), Len: length,
							Mem: 3 + i*(length+5)%(4<<20)}
						if length == 1<<20 {
							o.Off = i * length
						}
						copy(want[o.Off:], r.memory()[o.Mem:o.Mem+o.Len])
						ops = append(ops, o)
					}
					all(t, d, depth, ops)
					if !bytes.Equal(s.content(), want) {
						t.Error("the server has something else")
					}
					r.check(t)
					testkit.Equal(t, "bytes written", d.Stats().Written, uint64(n)*length)
					testkit.Equal(t, "flushes", s.get(func() int { return s.flushes }), 1)
					if got := r.dev.Stats().TxDevmemBytes; copied && got != 0 || !copied && got != uint64(n)*length {
						t.Errorf("%d bytes were sent from device memory", got)
					}
				})
			}
		}
	}
}

func TestReadsAndWrites(t *testing.T) {
	for _, copied := range []bool{false, true} {
		const half = 2 << 20
		s := &server{store: pattern(2 * half), minBlock: 1, maxPayload: 32 << 20, seed: 6}
		r := newRig(t, s, 3*half, 256<<10)
		r.conf.Copy = copied
		copy(r.memory()[2*half:], pattern(half))
		copy(r.want[guard+2*half:], pattern(half))
		d := r.open(t)
		var ops, back []block.Op
		for i := uint64(0); i < half; i += 32 << 10 {
			ops = append(ops, block.Op{Off: i, Len: 32 << 10, Mem: i},
				block.Op{Write: true, Off: half + i, Len: 32 << 10, Mem: 2*half + i})
			back = append(back, block.Op{Off: half + i, Len: 32 << 10, Mem: half + i})
		}
		for _, o := range ops {
			if !o.Write {
				r.read(o, s.store)
			}
		}
		all(t, d, 16, ops)
		r.check(t)
		all(t, d, 64, back)
		copy(r.want[guard+half:], pattern(half))
		r.check(t)
		st := d.Stats()
		testkit.Equal(t, "bytes read", st.Read, 2*half)
		testkit.Equal(t, "bytes written", st.Written, half)
		testkit.Equal(t, "replies", st.Messages, uint64(len(ops)+len(back)+1))
		if host := st.HostBytes; copied && host != st.Read+16*uint64(len(ops)/2+len(back)) || !copied && host != 0 {
			t.Errorf("%d bytes came in host memory", host)
		}
		if copied && (st.Looked != 0 || r.conf.Memory.Stats().Gathered != 0) {
			t.Errorf("copied, and %d bytes were looked at in device memory", st.Looked)
		}
		if !d.Coherent() {
			t.Error("the server's flags are not known")
		}
		testkit.OK(t, d.Close())
		testkit.Equal(t, "NBD_CMD_DISC", s.discsIn(t, 2), 2)
	}
}

func (s *server) discsIn(t testing.TB, n int) int {
	t.Helper()
	testkit.Eventually(t, "NBD_CMD_DISC", func() bool { return s.get(func() int { return s.discs }) >= n })
	return s.get(func() int { return s.discs })
}

// Invariant: nbd: An operation that the server refuses fails alone, wherever its reply is among
// others, unless the server shuts down.
func TestErrorsOfOperations(t *testing.T) {
	const n, length = 64, 4096
	for name, fails := range map[string]func(i int) uint32{
		"first":  func(i int) uint32 { return map[int]uint32{0: 5}[i] },
		"middle": func(i int) uint32 { return map[int]uint32{30: 1}[i] },
		"last":   func(i int) uint32 { return map[int]uint32{63: 28}[i] },
		"several": func(i int) uint32 {
			return map[int]uint32{0: 12, 1: 22, 7: 75, 8: 95, 9: 77, 40: 1 << 31, 62: 5, 63: 5}[i]
		},
		"all": func(int) uint32 { return 5 },
	} {
		t.Run(name, func(t *testing.T) {
			for _, write := range []bool{false, true} {
				s := &server{store: pattern(n * length), batch: n, reads: n, writes: n, seed: 8}
				want := map[string]int{}
				s.status = func(i int, _ bool) uint32 { return fails(i) }
				for i := range n {
					if v := fails(i); v != 0 {
						text, errno := status(v)
						want[fmt.Sprint(text, errno)]++
					}
				}
				r := newRig(t, s, n*length, 1<<20)
				d := r.open(t)
				var ops []block.Op
				for i := range uint64(n) {
					ops = append(ops, block.Op{Write: write, Off: i * length, Len: length, Mem: i * length})
				}
				content := s.content()
				got := map[string]int{}
				testkit.OK(t, d.Do(t.Context(), n, give(ops), func(x block.Done) {
					if e := (*block.OpError)(nil); errors.As(x.Err, &e) {
						got[fmt.Sprint(e.Status, e.Errno)]++
						testkit.Equal(t, "the error's operation", e.Op, x.Op)
					} else if testkit.NoError(t, x.Err); !write {
						r.read(x.Op, content)
					}
				}))
				if fmt.Sprint(got) != fmt.Sprint(want) {
					t.Errorf("errors %v, want %v", got, want)
				}
				r.check(t)
				s.set(func() { s.status, s.reads, s.writes = nil, n, n }) // the Device can still be used
				if !write {
					for _, o := range ops {
						r.read(o, content)
					}
				}
				all(t, d, n, ops)
				r.check(t)
				if st := d.Stats(); st.Looked < 16*uint64(n) && !write {
					t.Errorf("%d bytes were looked at, of %d replies", st.Looked, st.Messages)
				}
			}
		})
	}
}

func TestNamesOfErrors(t *testing.T) {
	for value, want := range map[uint32]struct {
		text  string
		errno syscall.Errno
	}{
		1: {"NBD_EPERM (1)", 1}, 5: {"NBD_EIO (5)", 5}, 12: {"NBD_ENOMEM (12)", 12}, 22: {"NBD_EINVAL (22)", 22},
		28: {"NBD_ENOSPC (28)", 28}, 75: {"NBD_EOVERFLOW (75)", 75}, 95: {"NBD_ENOTSUP (95)", 95},
		108: {"NBD_ESHUTDOWN (108)", 108}, 13: {"error 13, which is none of NBD's", 5},
	} {
		text, errno := status(value)
		testkit.Equal(t, "text", text, want.text)
		testkit.Equal(t, "errno", errno, want.errno)
	}
}

func TestOperationsAreChecked(t *testing.T) {
	s := &server{store: pattern(1 << 20)}
	r := newRig(t, s, 1<<20, 1<<20)
	r.conf.ReadOnly = true
	d := r.open(t)
	ops := []block.Op{{Off: 0, Len: 0}, {Off: 1, Len: 512}, {Off: 0, Len: 513}, {Off: 1 << 20, Len: 512},
		{Off: 0, Len: 512, Mem: 1<<20 - 511}, {Write: true, Len: 512}, {Len: 64 << 20}}
	want := []error{syscall.EINVAL, syscall.EINVAL, syscall.EINVAL, syscall.EIO, syscall.EFAULT, syscall.EROFS,
		syscall.EINVAL}
	i := 0
	testkit.OK(t, d.Do(t.Context(), 4, give(ops), func(x block.Done) {
		testkit.ErrorIs(t, x.Err, want[i])
		testkit.Equal(t, "operation", x.Op, ops[i])
		i++
	}))
	testkit.Equal(t, "operations", i, len(ops))
	testkit.Equal(t, "replies", d.Stats().Messages, 0)
	testkit.ErrorIs(t, d.Do(t.Context(), 0, give(nil), nil), syscall.EINVAL)
	testkit.OK(t, d.Do(t.Context(), 1, give(nil), nil))
	r.check(t)
}

func TestInfo(t *testing.T) {
	for _, c := range []struct {
		s    *server
		want block.Info
	}{
		{&server{}, block.Info{Size: 1 << 20, BlockSize: 512, MaxTransfer: 32 << 20, MaxDepth: 64,
			Name: `export "disk"`}},
		{&server{minBlock: 1, maxPayload: 32 << 20, flags: 3, description: "a\nb"},
			block.Info{Size: 1 << 20, BlockSize: 1, MaxTransfer: 32 << 20, MaxDepth: 64, ReadOnly: true,
				Name: `export "disk", a.b`}},
		{&server{minBlock: 4096, maxPayload: 1<<32 - 1},
			block.Info{Size: 1 << 20, BlockSize: 4096, MaxTransfer: 32 << 20, MaxDepth: 64, Name: `export "disk"`}},
		{&server{minBlock: 4096, maxPayload: 10000},
			block.Info{Size: 1 << 20, BlockSize: 4096, MaxTransfer: 8192, MaxDepth: 64, Name: `export "disk"`}},
		{&server{store: make([]byte, 1001)},
			block.Info{Size: 1001, BlockSize: 1, MaxTransfer: 32 << 20, MaxDepth: 64, Name: `export "disk"`}},
	} {
		if c.s.store == nil {
			c.s.store = make([]byte, 1<<20)
		}
		r := newRig(t, c.s, 1<<20, 1<<20)
		testkit.Equal(t, "info", r.open(t).Info(), c.want)
	}
}

// Do returns the error that the server reports of the flush, and the Device can still be used.
func TestFlush(t *testing.T) {
	s := &server{store: make([]byte, 1<<20), flushed: 5}
	r := newRig(t, s, 1<<20, 1<<20)
	d := r.open(t)
	write := []block.Op{{Write: true, Len: 512}}
	err := d.Do(t.Context(), 1, give(write), func(x block.Done) { testkit.NoError(t, x.Err) })
	testkit.ErrorIs(t, err, syscall.EIO)
	testkit.ErrorSays(t, err, "flush after writes: NBD_EIO (5)")
	s.set(func() { s.flushed = 0 })
	all(t, d, 1, write)
	all(t, d, 1, []block.Op{{Len: 512, Mem: 4096}})
	testkit.Equal(t, "flushes", s.get(func() int { return s.flushes }), 2)

	s = &server{store: make([]byte, 1<<20), flags: 1}
	r = newRig(t, s, 1<<20, 1<<20)
	d = r.open(t)
	all(t, d, 1, write)
	testkit.Equal(t, "flushes", s.get(func() int { return s.flushes }), 0)
	if d.Coherent() {
		t.Error("the server said no such thing")
	}
}

// When a server shuts down, operations in progress complete.
func TestShutdown(t *testing.T) {
	s := &server{store: pattern(1 << 20), batch: 8, reads: 8}
	s.status = func(i int, _ bool) uint32 { return map[int]uint32{2: 108}[i] }
	r := newRig(t, s, 1<<20, 1<<20)
	d := r.open(t)
	good, bad := 0, 0
	var ops []block.Op
	for i := range uint64(100) {
		ops = append(ops, block.Op{Off: i * 512, Len: 512, Mem: i * 512})
	}
	err := d.Do(t.Context(), 8, give(ops), func(x block.Done) {
		if x.Err == nil {
			good++
			r.read(x.Op, s.store)
			return
		}
		bad++
		testkit.ErrorIs(t, x.Err, syscall.ESHUTDOWN)
	})
	testkit.ErrorIs(t, err, syscall.ESHUTDOWN)
	if good != 7 || bad != 1 {
		t.Errorf("%d operations went well, and %d did not", good, bad)
	}
	r.check(t)
	testkit.Equal(t, "NBD_CMD_DISC", s.discsIn(t, 2), 2)
	testkit.ErrorIs(t, d.Do(t.Context(), 1, give(ops), nil), syscall.ESHUTDOWN)
}

func TestShutdownAtTheFlush(t *testing.T) {
	s := &server{store: make([]byte, 1<<20), flushed: 108}
	r := newRig(t, s, 1<<20, 1<<20)
	d := r.open(t)
	write := []block.Op{{Write: true, Len: 512}}
	err := d.Do(t.Context(), 1, give(write), func(x block.Done) { testkit.NoError(t, x.Err) })
	testkit.ErrorIs(t, err, syscall.ESHUTDOWN)
	testkit.ErrorSays(t, err, "flush after writes: NBD_ESHUTDOWN (108)")
	testkit.ErrorIs(t, d.Do(t.Context(), 1, give(write), nil), syscall.ESHUTDOWN)
	testkit.Equal(t, "NBD_CMD_DISC", s.discsIn(t, 2), 2)
	testkit.Equal(t, "flushes", s.get(func() int { return s.flushes }), 1)
}

// device counts calls of SendDevmem that queued bytes, and completed ones; its BindTX returns a late binding.
type device struct {
	devmem.Device
	sent, complete atomic.Int64
	tx             *late
}

type conn struct {
	devmem.Conn
	d *device
}

func (d *device) Dial(ctx context.Context, local, remote netip.AddrPort) (devmem.Conn, error) {
	c, err := d.Device.Dial(ctx, local, remote)
	return &conn{c, d}, err
}

func (c *conn) SendDevmem(binding uint32, ranges []devmem.Range) (int, error) {
	n, err := c.Conn.SendDevmem(binding, ranges)
	if n > 0 {
		c.d.sent.Add(1)
	}
	return n, err
}

func (c *conn) ReadCompletion(deadline time.Time) (lo, hi uint32, err error) {
	if lo, hi, err = c.Conn.ReadCompletion(deadline); err == nil {
		c.d.complete.Add(int64(hi-lo) + 1)
	}
	return lo, hi, err
}

// late is a binding that is done 20 ms after its Close.
type late struct {
	devmem.Binding
	once sync.Once
	done chan struct{}
}

func (b *late) Close() error {
	b.once.Do(func() { time.AfterFunc(20*time.Millisecond, func() { close(b.done) }) })
	return b.Binding.Close()
}

func (b *late) Done() <-chan struct{} { return b.done }

func (d *device) BindTX(b devmem.Buffer) (devmem.Binding, error) {
	x, err := d.Device.BindTX(b)
	d.tx = &late{Binding: x, done: make(chan struct{})}
	return d.tx, err
}

// Invariant: nbd: A write is done when its memory is free.
func TestWriteThatFailsIsDoneWhenItsMemoryIsFree(t *testing.T) {
	s := &server{store: make([]byte, 1<<20), bend: cut(0, 0)}
	r := newRig(t, s, 1<<20, 1<<20)
	lazy := &device{Device: r.dev}
	r.conf.Device = lazy
	d := r.open(t)
	err := d.Do(t.Context(), 1, give([]block.Op{{Write: true, Len: 4096}}), func(x block.Done) {
		testkit.ErrorIs(t, x.Err, io.ErrUnexpectedEOF)
		select {
		case <-lazy.tx.Done():
		default:
			t.Error("the binding is not done")
		}
	})
	testkit.ErrorIs(t, err, io.ErrUnexpectedEOF)
}

// Invariant: nbd: A write is done when its memory is free.
func TestWriteIsDoneWhenItsMemoryIsFree(t *testing.T) {
	s := &server{store: make([]byte, 1<<20)}
	r := newRig(t, s, 1<<20, 1<<20)
	counts := &device{Device: r.dev}
	r.conf.Device = counts
	d := r.open(t)
	var ops []block.Op
	for i := range uint64(20) {
		ops = append(ops, block.Op{Write: true, Off: i * 4096, Len: 4096, Mem: i * 4096})
	}
	n := int64(0)
	testkit.OK(t, d.Do(t.Context(), 1, give(ops), func(x block.Done) {
		n++
		if sent, complete := counts.sent.Load(), counts.complete.Load(); x.Err != nil || sent < n || complete != sent {
			t.Errorf("write %d: %d sends, %d complete: %v", n, sent, complete, x.Err)
		}
	}))
}

// A server that receives no requests while it cannot send replies causes no deadlock.
func TestLittleRoom(t *testing.T) {
	s := &server{store: pattern(4 << 20), small: true, seed: 3}
	r := newRig(t, s, 8<<20, 16*devmem.PageSize)
	r.conf.Depth = 1024
	d := r.open(t)
	var ops []block.Op
	for i := range uint64(1024) {
		ops = append(ops, block.Op{Off: i * 2048, Len: 2048, Mem: i * 2048},
			block.Op{Write: true, Off: 2<<20 + i*2048, Len: 2048, Mem: 4<<20 + i*2048})
		r.read(ops[len(ops)-2], s.store)
	}
	all(t, d, 1024, ops)
	r.check(t)
}

// When Do's context ends, Do calls done for the operations in progress, with the context's cause.
func TestContextEnds(t *testing.T) {
	over := errors.New("over")
	for _, write := range []bool{false, true} {
		s := &server{store: pattern(1 << 20), batch: 9, reads: 9, writes: 9} // one more than the depth: no answer comes
		r := newRig(t, s, 1<<20, 1<<20)
		d := r.open(t)
		ctx, cancel := context.WithCancelCause(t.Context())
		n, given := 0, 0
		err := d.Do(ctx, 8, func() (block.Op, bool) {
			if given++; given == 8 {
				time.AfterFunc(time.Millisecond, func() { cancel(over) })
			}
			return block.Op{Write: write, Off: uint64(given) * 512, Len: 512, Mem: uint64(given) * 512}, true
		}, func(x block.Done) {
			n++
			testkit.ErrorIs(t, x.Err, over)
		})
		testkit.ErrorIs(t, err, over)
		testkit.Equal(t, "operations that have ended", n, 8)
		testkit.ErrorIs(t, d.Do(t.Context(), 1, give([]block.Op{{Len: 512}}), nil), over)
		r.check(t)
		gone, stop := context.WithCancelCause(t.Context())
		stop(over)
		testkit.ErrorIs(t, d.Do(gone, 1, give(nil), nil), over)
		testkit.OK(t, d.Close())
		testkit.ErrorIs(t, testkit.Err(Open(gone, r.conf)), over)
	}
}

// Close ends Do, from another goroutine and in a callback.
func TestCloseEndsDo(t *testing.T) {
	for _, inside := range []bool{false, true} {
		s := &server{store: pattern(1 << 20)}
		r := newRig(t, s, 1<<20, 1<<20)
		d := r.open(t)
		began := make(chan struct{})
		closed := make(chan error, 1)
		if !inside {
			go func() {
				<-began
				closed <- d.Close()
			}()
		}
		n, ended := 0, 0
		err := d.Do(t.Context(), 8, func() (block.Op, bool) {
			if n++; n == 100 {
				close(began)
				if inside {
					closed <- d.Close()
				}
			}
			return block.Op{Write: n%2 == 0, Off: uint64(n%2) * 512, Len: 512, Mem: uint64(n%2) * 512}, true
		}, func(x block.Done) {
			if ended++; x.Err != nil {
				testkit.ErrorIs(t, x.Err, net.ErrClosed)
			}
		})
		testkit.ErrorIs(t, err, net.ErrClosed)
		testkit.OK(t, <-closed)
		testkit.Equal(t, "operations that have ended", ended, n)
		testkit.ErrorIs(t, d.Do(t.Context(), 1, give(nil), nil), net.ErrClosed)
		if b := r.dev.Stats().Bindings; len(b) != 0 {
			t.Errorf("bindings that are left: %+v", b)
		}
	}
}

// A Do during another is refused, and so is one after a callback that did not return.
func TestDoIsAlone(t *testing.T) {
	s := &server{store: pattern(1 << 20)}
	r := newRig(t, s, 1<<20, 1<<20)
	d := r.open(t)
	testkit.OK(t, d.Do(t.Context(), 8, give([]block.Op{{Len: 512}}), func(block.Done) {
		testkit.ErrorIs(t, d.Do(t.Context(), 1, give(nil), nil), syscall.EBUSY)
	}))
	func() {
		defer func() { _ = recover() }()
		_ = d.Do(t.Context(), 8, give(readsOf(64, 512, 512, 1)), func(block.Done) { panic("stop") })
	}()
	testkit.ErrorSays(t, d.Do(t.Context(), 1, give(nil), nil), "a callback of Do did not return")
}

func TestConfigIsChecked(t *testing.T) {
	s := &server{store: pattern(1 << 20)}
	r := newRig(t, s, 1<<20, 1<<20)
	for _, change := range []func(c *Config){
		func(c *Config) { c.Device = nil }, func(c *Config) { c.Memory = nil }, func(c *Config) { c.Data = nil },
		func(c *Config) { c.Pool = nil }, func(c *Config) { c.Depth = 0 }, func(c *Config) { c.Depth = 1025 },
		func(c *Config) { c.Server = netip.AddrPort{} }, func(c *Config) { c.Export = "a\x00b" },
		func(c *Config) { c.Export = string(make([]byte, 4097)) }, func(c *Config) { c.Timeout = -1 },
		func(c *Config) { c.Queue = 16 },
	} {
		c := r.conf
		change(&c)
		testkit.ErrorIs(t, testkit.Err(Open(t.Context(), c)), syscall.EINVAL)
	}
	c := r.conf
	c.Queue = 0
	testkit.ErrorIs(t, testkit.Err(Open(t.Context(), c)), syscall.ERANGE)
	d := r.open(t)
	testkit.ErrorIs(t, testkit.Err(Open(t.Context(), r.conf)), syscall.EEXIST)
	all(t, d, 1, []block.Op{{Len: 512}})
	s.stop()
	testkit.OK(t, d.Close())
	testkit.ErrorIs(t, testkit.Err(Open(t.Context(), r.conf)), syscall.ECONNREFUSED)
	testkit.Equal(t, "bindings that are left", len(r.dev.Stats().Bindings), 0)
}
