package gpumem

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"math/rand/v2"
	"os"
	"sync/atomic"
	"syscall"
	"testing"

	"pgregory.net/rapid"
	"vnic.dev/vnic/dma"
	"vnic.dev/vnic/internal/lab/shape"
	"vnic.dev/vnic/internal/testkit"
)

const (
	ramAt  = 0x1_0000_0000 // IOVA of the guest's RAM
	ramLen = 4 << 20
	gpuLen = 4 << 20
	bufOff = 1 << 19 // offset of the only buffer in the GPU
	bufLen = 3 << 20
)

// rig is a port with RAM of two adjacent regions, and a GPU with one buffer.
type rig struct {
	t     testing.TB
	ram   *os.File
	space *dma.Space
	gpu   *GPU
	reg   *Registry
	e     *Engine
	done  chan Status
}

func newRig(t testing.TB, o EngineOptions) *rig {
	files := dma.NewFiles()
	noLeak(t, files)
	b := &rig{t: t, ram: testkit.Memfd(t, ramLen), space: dma.NewSpace("port0", files), done: make(chan Status, 1000)}
	b.gpu = newGPU(t, files, 0, gpuLen)
	for off := uint64(0); off < ramLen; off += ramLen / 2 {
		testkit.OK(t, b.space.Add(dma.Map{IOVA: ramAt + off, Size: ramLen / 2, FD: int(b.ram.Fd()), FileOffset: off}))
	}
	b.reg = NewRegistry([]*GPU{b.gpu}, 4)
	testkit.OK(t, errOf(b.reg.RegisterBuffer(0, bufOff, bufLen)))
	if o.Done == nil {
		o.Done = func(s Status) { b.done <- s }
	}
	b.e = NewEngine(b.reg, b.space, o)
	t.Cleanup(func() {
		b.e.CancelAll()
		b.reg.CloseAll()
		wantErr(t, "Close", b.space.Close(), nil)
	})
	return b
}

func (b *rig) run(j Job) Status {
	b.t.Helper()
	id, err := b.e.Submit(j)
	testkit.OK(b.t, err)
	s := <-b.done
	if s.ID != id || !s.Done || (s.Err == nil) != (s.Errno == 0) {
		b.t.Fatalf("job %d: %+v", id, s)
	}
	if p, err := b.e.Poll(id); err != nil || p.Errno != s.Errno || !p.Done || p.Sum != s.Sum {
		b.t.Fatalf("poll: %+v, %v", p, err)
	}
	return s
}

func (b *rig) good(j Job) Status {
	b.t.Helper()
	s := b.run(j)
	testkit.OK(b.t, s.Err)
	return s
}

func (b *rig) write(off int64, p []byte) {
	b.t.Helper()
	testkit.OK(b.t, errOf(b.ram.WriteAt(p, off)))
}

func (b *rig) read(off, n int64) []byte {
	b.t.Helper()
	p := make([]byte, n)
	testkit.OK(b.t, errOf(b.ram.ReadAt(p, off)))
	return p
}

func (b *rig) gpuHas(what string, off uint64, want []byte) {
	b.t.Helper()
	if !bytes.Equal(b.gpu.peek(b.t, off, uint64(len(want))), want) {
		b.t.Fatalf("%s: other bytes than expected", what)
	}
}

// othersUntouched checks that GPU memory outside the buffer is still zero.
func (b *rig) othersUntouched() {
	b.t.Helper()
	b.gpuHas("before the buffer", 0, make([]byte, bufOff))
	b.gpuHas("behind the buffer", bufOff+bufLen, make([]byte, gpuLen-bufOff-bufLen))
}

func table(es ...entry) []byte {
	var b []byte
	for _, e := range es {
		b = le.AppendUint64(b, e.src)
		b = le.AppendUint64(b, e.dst)
		b = le.AppendUint32(b, e.len)
		b = le.AppendUint32(b, 0)
	}
	return b
}

func pattern(n int, seed, off uint64) []byte {
	b := make([]byte, n)
	FillAt(b, seed, off)
	return b
}

func TestFillHashPoison(t *testing.T) {
	b := newRig(t, EngineOptions{})
	const n = 2<<20 + 77
	s := b.good(Job{Op: Fill, Off: bufOff + 5, Len: n, Seed: 9, Stream: 13})
	testkit.Equal(t, "bytes", s.Bytes, n)
	want := pattern(n, 9, 13)
	b.gpuHas("fill", bufOff+5, want)
	b.gpuHas("before what is filled", bufOff, make([]byte, 5))
	b.gpuHas("behind what is filled", bufOff+5+n, []byte{0})
	if s = b.good(Job{Op: SHA256, Off: bufOff + 5, Len: n}); s.Sum != sha256.Sum256(want) {
		t.Fatal("hash")
	}
	if s = b.good(Job{Op: SHA256, Off: bufOff}); s.Sum != sha256.Sum256(nil) || s.Bytes != 0 {
		t.Fatal("hash of nothing")
	}
	b.good(Job{Op: Poison, Off: bufOff, Len: bufLen, Seed: 0x1de})
	b.gpuHas("poison", bufOff, bytes.Repeat([]byte{0xde}, bufLen))
	b.othersUntouched()
	testkit.Equal(t, "stats", b.e.Stats(), EngineStats{Jobs: 4, Filled: n + bufLen, Hashed: n})
}

// The table of a copy to or from the guest may be in RAM or in GPU memory.
func TestLists(t *testing.T) {
	b := newRig(t, EngineOptions{})
	noise := make([]byte, ramLen+1<<20)
	FillAt(noise, 1, 0)
	gpu, ram := make([]byte, gpuLen), make([]byte, ramLen)
	rapid.Check(t, func(rt *rapid.T) {
		op := rapid.SampledFrom([]Op{Gather, CopyToGuest, CopyFromGuest}).Draw(rt, "op")
		inGPU := rapid.Bool().Draw(rt, "table in GPU")
		r := rand.New(rand.NewPCG(rapid.Uint64().Draw(rt, "seed"), 1))
		n := rapid.SampledFrom([]int{0, 1, 2, 100, batchLen, batchLen + 1, 3*batchLen + 5}).Draw(rt, "entries")
		most := rapid.SampledFrom([]int{1, 100, 5000}).Draw(rt, "longest")
		if n <= 2 {
			most = 5 << 18 // more than pieceLen: an entry may need two pieces
		}
		// Gather's sources are in the lower half of the buffer, its destinations in the upper one.
		const half = 3 << 19
		copy(gpu, noise[r.IntN(1<<20):])
		copy(ram, noise[r.IntN(1<<20):])
		b.gpu.poke(t, 0, gpu)
		b.write(0, ram)
		var es []entry
		total := uint64(0)
		for range n {
			l := r.IntN(most + 1)
			g := uint64(bufOff + r.IntN(half-l))
			e := entry{len: uint32(l)}
			switch op {
			case Gather:
				e.src, e.dst = g, uint64(bufOff+half+r.IntN(half-l))
				copy(gpu[e.dst:e.dst+uint64(l)], gpu[e.src:])
			case CopyToGuest:
				off := uint64(r.IntN(ramLen - 1<<20 - l))
				e.src, e.dst = g, ramAt+off
				copy(ram[off:off+uint64(l)], gpu[g:])
			case CopyFromGuest:
				off := uint64(r.IntN(ramLen - 1<<20 - l))
				e.src, e.dst = ramAt+off, g
				copy(gpu[g:g+uint64(l)], ram[off:])
			}
			es = append(es, e)
			total += uint64(l)
		}
		// The table is behind all copied memory.
		j := Job{Op: op, Entries: uint32(n), Table: ramAt + ramLen - 1<<20 + 3}
		tab := table(es...)
		if inGPU && op != Gather && len(tab) < 1<<17 {
			j.TableInGPU, j.Table = true, bufOff+bufLen-1<<17+8
			b.gpu.poke(t, j.Table, tab)
			copy(gpu[j.Table:], tab)
		} else {
			b.write(ramLen-1<<20+3, tab)
			copy(ram[ramLen-1<<20+3:], tab)
		}
		before := b.e.Stats()
		s := b.good(j)
		if s.Bytes != total || s.Entry != uint32(n) {
			rt.Fatalf("%+v, want %d bytes", s, total)
		}
		after := b.e.Stats()
		moved := map[Op]uint64{Gather: after.Gathered - before.Gathered, CopyToGuest: after.ToGuest - before.ToGuest,
			CopyFromGuest: after.FromGuest - before.FromGuest}
		if moved[op] != total || moved[Gather]+moved[CopyToGuest]+moved[CopyFromGuest] != total ||
			after.TableBytes-before.TableBytes != uint64(n*EntryLen) {
			rt.Fatalf("%+v, then %+v", before, after)
		}
		if !bytes.Equal(b.gpu.peek(t, 0, gpuLen), gpu) || !bytes.Equal(b.read(0, ramLen), ram) {
			rt.Fatal("other bytes than those of the list")
		}
	})
}

// Copied bytes are counted by node; for copies to two nodes in a batch, the engine asks for the links of the first.
func TestCopiesAreCountedByNode(t *testing.T) {
	var crossed []int
	links := func(gpu, node int) *shape.Route {
		crossed = append(crossed, node)
		return nil
	}
	b := newRig(t, EngineOptions{ToGuest: links, FromGuest: links})
	const far, n = 1 << 40, 4096
	testkit.OK(t, b.space.Add(dma.Map{IOVA: far, Size: ramLen, FD: int(testkit.Memfd(t, ramLen).Fd())}))
	do := func(op Op, es ...entry) {
		b.write(ramLen/2, table(es...))
		b.good(Job{Op: op, Entries: uint32(len(es)), Table: ramAt + ramLen/2})
	}
	do(CopyToGuest, entry{src: bufOff, dst: ramAt, len: n}) // the node is unknown before SetNodes
	b.space.SetNodes(2)
	do(CopyToGuest, entry{src: bufOff, dst: far, len: 2 * n}, entry{src: bufOff, dst: ramAt, len: n})
	do(CopyFromGuest, entry{src: ramAt, dst: bufOff, len: 3 * n})
	do(Gather, entry{src: bufOff, dst: bufOff + n, len: n})
	for node, want := range map[int][2]uint64{-1: {n, 0}, 0: {n, 3 * n}, 1: {2 * n, 0}} {
		to, from := b.e.Copied(0, node)
		testkit.Equal(t, fmt.Sprint("node ", node), [2]uint64{to, from}, want)
	}
	testkit.Equal(t, "links", fmt.Sprint(crossed), "[-1 1 0]")
}

func TestRefusedJobs(t *testing.T) {
	b := newRig(t, EngineOptions{})
	for _, tc := range []struct {
		job  Job
		want error
	}{
		{Job{}, syscall.EINVAL}, {Job{Op: Reduce + 1}, syscall.EINVAL}, {Job{Op: Reduce}, syscall.EINVAL},
		{Job{Op: Reduce, Seed: 4}, syscall.EINVAL}, {Job{Op: Reduce, Seed: 1 << 32}, syscall.EINVAL}, {Job{Op: Fill, GPU: 1}, syscall.ENODEV},
		{Job{Op: Fill, GPU: -1}, syscall.ENODEV}, {Job{Op: Gather, Entries: MaxEntries + 1}, syscall.EINVAL},
	} {
		wantErr(t, fmt.Sprintf("%+v", tc.job), errOf(b.e.Submit(tc.job)), tc.want)
	}
	wantErr(t, "poll of no job", errOf(b.e.Poll(1)), syscall.ENOENT)
	wantErr(t, "cancel of no job", errOf(b.e.Cancel(1)), syscall.ENOENT)
}

// endless writes a table into the buffer, and returns a long job over it: 43690 entries of 1 MiB.
func (b *rig) endless() Job {
	const n = 1 << 20 / EntryLen
	b.gpu.poke(b.t, bufOff+2<<20, bytes.Repeat(table(entry{bufOff, bufOff + 1<<20, 1 << 20}), n))
	return Job{Op: Gather, TableInGPU: true, Table: bufOff + 2<<20, Entries: n}
}

// Invariant: gpumem: Removing memory ends the jobs that still need it, and a reset of the engine
// ends all its jobs.
func TestCancel(t *testing.T) {
	b := newRig(t, EngineOptions{MaxJobs: 3})
	j := b.endless()
	var ids []uint64
	for range 3 {
		id := testkit.Must(b.e.Submit(j))(t)
		ids = append(ids, id)
	}
	wantErr(t, "a fourth job", errOf(b.e.Submit(j)), syscall.EAGAIN)
	s, err := b.e.Cancel(ids[1])
	if err != nil || s.Errno != syscall.ECANCELED || !s.Done {
		t.Fatalf("%+v, %v", s, err)
	}
	if s, err := b.e.Poll(ids[0]); err != nil || s.Done {
		t.Fatalf("another job: %+v, %v", s, err)
	}
	testkit.Equal(t, "job that has ended", (<-b.done).ID, ids[1])
	again, err := b.e.Cancel(ids[1])
	if err != nil || again.Bytes != s.Bytes || again.Errno != s.Errno {
		t.Fatalf("cancelled twice: %+v, %v", again, err)
	}
	if id, err := b.e.Submit(j); err != nil || id != 4 {
		t.Fatal(id, err)
	}
	b.e.Reset()
	testkit.Equal(t, "ends that were told when Reset returned", len(b.done), 3)
	before := b.gpu.peek(t, bufOff, bufLen)
	for range 3 {
		testkit.Equal(t, "errno of a job", (<-b.done).Errno, syscall.ECANCELED)
	}
	wantErr(t, "after reset", errOf(b.e.Poll(ids[0])), syscall.ENOENT)
	b.gpuHas("the buffer after a reset", bufOff, before)
	testkit.Equal(t, "job afterwards", b.good(Job{Op: Fill, Off: bufOff, Len: 4096}).ID, 5)
}

// CancelAll waits for Done, Cancel does not.
func TestCancelWhileDoneWaits(t *testing.T) {
	entered, leave := make(chan struct{}), make(chan struct{})
	var after atomic.Bool
	b := newRig(t, EngineOptions{Done: func(Status) {
		close(entered)
		<-leave
		if after.Load() {
			t.Error("Done after CancelAll")
		}
	}})
	id, err := b.e.Submit(b.endless())
	testkit.OK(t, err)
	if s, err := b.e.Cancel(id); err != nil || !s.Done {
		t.Fatalf("%+v, %v", s, err)
	}
	<-entered
	go close(leave)
	b.e.CancelAll()
	after.Store(true)
}

func TestOldStatusesAreForgotten(t *testing.T) {
	b := newRig(t, EngineOptions{Keep: 3})
	for range 5 {
		b.good(Job{Op: Poison, Off: bufOff, Len: 1})
	}
	for id := range uint64(7) {
		testkit.Equal(t, fmt.Sprintf("job %d is known", id), errOf(b.e.Poll(id)) == nil, id >= 3 && id <= 5)
	}
}

func BenchmarkEngine(b *testing.B) {
	for _, tc := range []struct {
		name string
		len  uint32
	}{{"1448", 1448}, {"4096", 4096}, {"1M", 1 << 20}} {
		b.Run("gather-"+tc.name, func(b *testing.B) {
			bn := newRig(b, EngineOptions{})
			var tab []byte
			n := uint32(1<<20) / tc.len
			for i := range n {
				tab = append(tab, table(entry{bufOff + uint64(i*tc.len), bufOff + 1<<20 + uint64(i*tc.len), tc.len})...)
			}
			bn.write(0, tab)
			b.SetBytes(int64(n * tc.len))
			b.ResetTimer()
			for range b.N {
				bn.good(Job{Op: Gather, Entries: n, Table: ramAt})
			}
		})
	}
	for name, j := range map[string]Job{"fill": {Op: Fill}, "poison": {Op: Poison}, "sha256": {Op: SHA256}} {
		b.Run(name, func(b *testing.B) {
			bn := newRig(b, EngineOptions{})
			j.Off, j.Len = bufOff, bufLen
			b.SetBytes(bufLen)
			b.ResetTimer()
			for range b.N {
				bn.good(j)
			}
		})
	}
	b.Run("memcpy", func(b *testing.B) {
		buf := make([]byte, 2<<20)
		b.SetBytes(1 << 20)
		for b.Loop() {
			copy(buf[:1<<20], buf[1<<20:])
		}
	})
}
