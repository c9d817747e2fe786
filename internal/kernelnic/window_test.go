package kernelnic

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/internal/control"
	"vnic.dev/vnic/internal/hugemem"
	"vnic.dev/vnic/internal/testkit"
)

// testMaps has the memory of GPU 2 in two pieces; the second comes first in GPU memory.
var testMaps = []control.GPUMap{
	{GPU: 1, IOVA: 0, Off: 0, Size: 1 << 40},
	{GPU: 2, IOVA: 0x4000_0000, Off: 32 << 20, Size: 32 << 20},
	{GPU: 2, IOVA: 1 << 32, Off: 0, Size: 32 << 20},
}

// window makes a window of GPU 2 on ordinary memory, as if its huge pages had the addresses addrs.
func window(t *testing.T, addrs ...uint64) *Window {
	t.Helper()
	w := &Window{gpu: 2, mem: make([]byte, len(addrs)*hugePage)}
	testkit.OK(t, w.arrange(addrs, testMaps))
	return w
}

// scattered makes a window of five pages in three extents.
func scattered(t *testing.T) *Window {
	return window(t, 1<<32+2*hugePage, 0x4000_0000+3*hugePage, 1<<32, 1<<32+hugePage, 0x4000_0000+5*hugePage)
}

func TestPagesAreInTheOrderOfTheirAddresses(t *testing.T) {
	w := scattered(t)
	want := []Extent{
		{0, 32<<20 + 3*hugePage, hugePage},
		{hugePage, 32<<20 + 5*hugePage, hugePage},
		{2 * hugePage, 0, 3 * hugePage},
	}
	if got := w.Extents(); !slices.Equal(got, want) {
		t.Errorf("%+v, not %+v", got, want)
	}
	if one := window(t, 1<<32+hugePage, 1<<32); len(one.extents) != 1 || one.extents[0] != (Extent{0, 0, 2 * hugePage}) {
		t.Errorf("%+v", one.extents)
	}
}

// Invariant: guest-images: Memory that does not belong to a GPU is refused.
func TestPageThatIsNoGPUsIsRefused(t *testing.T) {
	for name, addr := range map[string]uint64{"before": 0x4000_0000 - hugePage, "behind": 0x4000_0000 + 32<<20,
		"over the end": 1<<32 + 32<<20 - 4096} {
		w := &Window{gpu: 2}
		testkit.ErrorIs(t, w.arrange([]uint64{1 << 32, addr}, testMaps), unix.ENODEV, "%s", name)
	}
}

// Invariant: guest-images: A window's pages are where the NIC reports them, and jobs reach each
// byte.
func TestPiecesAgainstAByteAtATime(t *testing.T) {
	w := scattered(t)
	place := func(off uint64) uint64 {
		for _, e := range w.extents {
			if off >= e.Off && off < e.Off+e.Size {
				return e.GPUOff + off - e.Off
			}
		}
		t.Fatalf("%#x is nowhere", off)
		return 0
	}
	r := rand.New(rand.NewPCG(1, 2))
	for range 2000 {
		off := r.Uint64N(w.Size() + 1)
		size := r.Uint64N(w.Size() - off + 1)
		pieces := testkit.Must(w.pieces(off, size))(t)
		pos := off
		for _, p := range pieces {
			if p.Off != pos || p.Size == 0 || p.GPUOff != place(pos) || p.GPUOff+p.Size-1 != place(pos+p.Size-1) {
				t.Fatalf("[%#x, +%#x): %+v", off, size, pieces)
			}
			pos += p.Size
		}
		if pos != off+size {
			t.Fatalf("[%#x, +%#x): ends at %#x", off, size, pos)
		}
		pos = off
		for _, i := range w.items(off, size) {
			for n := uint64(0); n < i.size; n += min(4096, i.size-n) {
				if want := uint64(w.order[(pos+n)/hugePage])*hugePage + (pos+n)%hugePage; i.off+n != want {
					t.Fatalf("item %+v at %#x: not %#x", i, pos+n, want)
				}
			}
			pos += i.size
		}
		if pos != off+size {
			t.Fatalf("items of [%#x, +%#x): end at %#x", off, size, pos)
		}
	}
	for _, bad := range [][2]uint64{{w.Size(), 1}, {w.Size() + 1, 0}, {1, w.Size()}, {^uint64(0), 2}, {1, ^uint64(0)}} {
		testkit.ErrorIs(t, testkit.Err(w.pieces(bad[0], bad[1])), unix.EINVAL, "[%#x, +%#x)", bad[0], bad[1])
	}
}

func TestWindowIsReadAndWritten(t *testing.T) {
	w := scattered(t)
	data := make([]byte, 3*hugePage+5)
	for i := range data {
		data[i] = byte(i * 7 >> 3)
	}
	if n, err := w.WriteAt(data, hugePage-3); n != len(data) || err != nil {
		t.Fatal(n, err)
	}
	got := make([]byte, len(data))
	if n, err := w.ReadAt(got, hugePage-3); n != len(got) || err != nil || !bytes.Equal(got, data) {
		t.Error(n, err)
	}
	for _, e := range w.extents {
		if p := w.page(e.Off); &p[0] != &w.mem[uint64(w.order[e.Off/hugePage])*hugePage] {
			t.Errorf("%+v is elsewhere", e)
		}
	}
	testkit.Equal(t, "bytes at the end", len(testkit.Must(w.Bytes(2, w.Size(), 0))(t)), 0)
	testkit.ErrorIs(t, testkit.Err(w.ReadAt(got, int64(w.Size())-1)), unix.EINVAL)
	testkit.ErrorIs(t, testkit.Err(w.WriteAt(data, -1)), unix.EINVAL)
}

func TestWindowInUseIsNotClosed(t *testing.T) {
	w := &Window{inUse: 1}
	w.undo.Add(func() error { t.Error("closed"); return nil })
	testkit.ErrorIs(t, w.Close(), unix.EBUSY)
}

func TestWindowOfNoSize(t *testing.T) {
	for _, size := range []uint64{0, 1 << 47} {
		testkit.ErrorIs(t, testkit.Err(NewWindow(0, 1, size, nil)), unix.EINVAL, "%d", size)
	}
}

// jobs is a runner that records its jobs and their table entries.
type jobs struct {
	mem  *hugemem.Memory
	list []control.Job
	ents []control.JobEntry
	fail int // the number, from 1, of the job that fails; 0: none
}

func (g *jobs) RunJob(_ context.Context, j control.Job) (s control.JobStatus, err error) {
	g.list = append(g.list, j)
	if len(g.list) == g.fail {
		return s, unix.EIO
	}
	if j.Entries > 0 {
		b, err := g.mem.Slice(j.Table, uint64(j.Entries)*control.JobEntryLen)
		if err != nil {
			return s, err
		}
		for ; len(b) > 0; b = b[control.JobEntryLen:] {
			e := decode(b)
			g.ents = append(g.ents, e)
			s.Bytes += uint64(e.Len)
		}
	}
	s.Bytes += j.Len
	s.State = control.JobDone
	return s, nil
}

// ram returns guest RAM whose huge pages are ordinary memory, at the invented address 0x1000_0000.
func ram() *hugemem.Memory {
	return &hugemem.Memory{NewPage: func() ([]byte, uint64, error) { return make([]byte, hugePage), 0x1000_0000, nil }}
}

func TestJobsOnRangesAreTranslated(t *testing.T) {
	g := &jobs{}
	e := newEngine(g, scattered(t), ram())
	s, err := e.RunJob(t.Context(), control.Job{Op: control.JobFill, GPU: 2, Off: hugePage + 10, Len: 2 * hugePage,
		Seed: 5, Stream: 100})
	if err != nil || s.Bytes != 2*hugePage {
		t.Fatalf("%+v, %v", s, err)
	}
	want := []control.Job{
		{Op: control.JobFill, GPU: 2, Off: 32<<20 + 5*hugePage + 10, Len: hugePage - 10, Seed: 5, Stream: 100},
		{Op: control.JobFill, GPU: 2, Off: 0, Len: hugePage + 10, Seed: 5, Stream: 100 + hugePage - 10},
	}
	if !slices.Equal(g.list, want) {
		t.Errorf("%+v", g.list)
	}
	g.list, g.fail = nil, 1
	if _, err := e.RunJob(t.Context(), control.Job{Op: control.JobPoison, GPU: 2, Len: 3 * hugePage}); !errors.Is(err,
		unix.EIO) || len(g.list) != 1 {
		t.Errorf("%v, %+v", err, g.list)
	}
	for _, bad := range []struct {
		j    control.Job
		want error
	}{
		{control.Job{Op: control.JobFill, GPU: 1, Len: 1}, unix.ENODEV},
		{control.Job{Op: control.JobFill, GPU: 2, Off: 5 * hugePage, Len: 1}, unix.EINVAL},
		{control.Job{Op: control.JobSHA256, GPU: 2, Len: 2 * hugePage}, unix.EOPNOTSUPP},
		{control.Job{Op: 99, GPU: 2, Len: 1}, unix.EINVAL},
		{control.Job{Op: control.JobGather, GPU: 2, Entries: 1, TableInGPU: true}, unix.EOPNOTSUPP},
		{control.Job{Op: control.JobGather, GPU: 2, Entries: 1, Table: 7}, unix.EFAULT},
	} {
		testkit.ErrorIs(t, testkit.Err(e.RunJob(t.Context(), bad.j)), bad.want, "%+v", bad.j)
	}
}

// Invariant: guest-images: A window's pages are where the NIC reports them, and jobs reach each
// byte.
func TestJobTablesAreTranslated(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	w := scattered(t)
	gpuPlace := func(off uint64) uint64 {
		p := testkit.Must(w.pieces(off, 1))(t)
		return p[0].GPUOff
	}
	for op, side := range map[control.JobOp][2]bool{control.JobGather: {true, true}, control.JobToGuest: {true, false},
		control.JobFromGuest: {false, true}} {
		mem := ram()
		g := &jobs{mem: mem}
		e := newEngine(g, w, mem)
		table, iova, err := mem.AllocDMA(1000 * control.JobEntryLen)
		testkit.OK(t, err)
		var in []control.JobEntry
		var bytes uint64
		for i := range 1000 {
			n := 1 + r.Uint32N(3*hugePage)
			x := control.JobEntry{Src: r.Uint64N(w.Size() - uint64(n)), Dst: r.Uint64N(w.Size() - uint64(n)), Len: n}
			x.Encode((*[control.JobEntryLen]byte)(table[i*control.JobEntryLen:]))
			in, bytes = append(in, x), bytes+uint64(n)
		}
		s, err := e.RunJob(t.Context(), control.Job{Op: op, GPU: 2, Table: iova, Entries: 1000})
		if err != nil || s.Bytes != bytes || len(g.list) < 2 {
			t.Fatalf("%+v of %d, %d jobs, %v", s, bytes, len(g.list), err)
		}
		addr := func(gpu bool, off uint64) uint64 {
			if gpu {
				return gpuPlace(off)
			}
			return off
		}
		for _, out := range g.ents {
			for len(in) > 0 && in[0].Len == 0 {
				in = in[1:]
			}
			x := &in[0]
			last := uint64(out.Len - 1)
			if out.Len == 0 || out.Len > x.Len || out.Src != addr(side[0], x.Src) || out.Dst != addr(side[1], x.Dst) ||
				out.Src+last != addr(side[0], x.Src+last) || out.Dst+last != addr(side[1], x.Dst+last) {
				t.Fatalf("operation %d: %+v of %+v", op, out, *x)
			}
			x.Src, x.Dst, x.Len = x.Src+uint64(out.Len), x.Dst+uint64(out.Len), x.Len-out.Len
		}
		bad := control.JobEntry{Src: w.Size() - 1, Dst: w.Size() - 1, Len: 2}
		bad.Encode((*[control.JobEntryLen]byte)(table))
		_, err = e.RunJob(t.Context(), control.Job{Op: op, GPU: 2, Table: iova, Entries: 1})
		testkit.ErrorIs(t, err, unix.EINVAL, "operation %d past the end", op)
		testkit.Equal(t, "tables that are back", len(e.tables), maxTables)
	}
}

func TestWaitForATableEnds(t *testing.T) {
	mem := ram()
	e := newEngine(&jobs{mem: mem}, scattered(t), mem)
	for range maxTables {
		<-e.tables
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, table, err := mem.AllocDMA(control.JobEntryLen)
	testkit.OK(t, err)
	_, err = e.RunJob(ctx, control.Job{Op: control.JobGather, GPU: 2, Table: table, Entries: 1})
	testkit.ErrorIs(t, err, context.Canceled)
}

func TestMemoryIsFoundByItsAddress(t *testing.T) {
	m := ram()
	b, iova, err := m.AllocDMA(5000)
	if err != nil || len(b) != 8192 || iova != 0x1000_0000 {
		t.Fatalf("%d bytes at %#x, %v", len(b), iova, err)
	}
	c, next, err := m.AllocDMA(1)
	if err != nil || next != iova+8192 {
		t.Fatalf("%#x, %v", next, err)
	}
	c[0] = 9
	if got, err := m.Slice(next, 1); err != nil || got[0] != 9 {
		t.Errorf("%v, %v", got, err)
	}
	for _, bad := range [][2]uint64{{iova - 1, 1}, {iova + hugePage, 1}, {iova + hugePage - 1, 2}, {iova, ^uint64(0)},
		{0, 1}} {
		testkit.ErrorIs(t, testkit.Err(m.Slice(bad[0], bad[1])), unix.EFAULT, "[%#x, +%#x)", bad[0], bad[1])
	}
	for _, n := range []int{0, -1, hugePage + 1} {
		if _, _, err := m.AllocDMA(n); !errors.Is(err, unix.EINVAL) {
			t.Errorf("%d bytes: %v", n, err)
		}
	}
}

func TestInterfaceIsFoundByItsDriver(t *testing.T) {
	sys := t.TempDir()
	add := func(name, driver string) {
		dir := filepath.Join(sys, "class/net", name, "device")
		testkit.OK(t, errors.Join(os.MkdirAll(dir, 0o755), os.Symlink("../../../bus/pci/drivers/"+driver,
			filepath.Join(dir, "driver"))))
	}
	add("eth0", "virtio_net")
	testkit.ErrorIs(t, testkit.Err(findInterface(sys, "gve")), unix.ENODEV)
	add("eth1", "gve")
	if name, err := findInterface(sys, "gve"); err != nil || name != "eth1" {
		t.Errorf("%q, %v", name, err)
	}
	add("eth2", "gve")
	testkit.ErrorSays(t, testkit.Err(findInterface(sys, "gve")), "eth1, eth2")
}
