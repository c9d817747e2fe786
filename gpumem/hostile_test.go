package gpumem

import (
	"bytes"
	"errors"
	"syscall"
	"testing"

	"vnic.dev/vnic/internal/testkit"
)

// Invariant: gpumem: A job touches only the memory of its port's buffers and guest.
func TestHostileJobs(t *testing.T) {
	const big = 1<<64 - 8
	in := uint64(bufOff)
	for _, tc := range []struct {
		name  string
		job   Job
		table []entry
		raw   []byte
		want  syscall.Errno
		entry uint32
		bytes uint64
	}{
		{name: "fill before the buffer", job: Job{Op: Fill, Off: bufOff - 1, Len: 10}, want: syscall.EFAULT},
		{name: "fill over the end", job: Job{Op: Fill, Off: bufOff, Len: bufLen + 1}, want: syscall.EFAULT, bytes: bufLen},
		{name: "fill of everything", job: Job{Op: Fill, Off: 0, Len: 1<<64 - 1}, want: syscall.EFAULT},
		{name: "fill that wraps", job: Job{Op: Poison, Off: big, Len: 16}, want: syscall.EFAULT},
		{name: "hash elsewhere", job: Job{Op: SHA256, Off: 0, Len: 1}, want: syscall.EFAULT},
		{name: "gather from elsewhere", job: Job{Op: Gather}, table: []entry{{in, in + 100, 50}, {in - 1, in, 2}},
			want: syscall.EFAULT, entry: 1, bytes: 50},
		{name: "gather to elsewhere", job: Job{Op: Gather}, table: []entry{{in, in + bufLen - 1, 2}}, want: syscall.EFAULT},
		{name: "gather that wraps", job: Job{Op: Gather}, table: []entry{{big, in, 1 << 31}}, want: syscall.EFAULT},
		{name: "huge gather", job: Job{Op: Gather}, table: []entry{{in, in, 1<<32 - 1}}, want: syscall.EFAULT,
			bytes: 3 << 20},
		{name: "to no RAM", job: Job{Op: CopyToGuest}, table: []entry{{in, 4096, 1}}, want: syscall.EFAULT},
		{name: "to the end of RAM", job: Job{Op: CopyToGuest}, table: []entry{{in, ramAt + ramLen - 1, 2}},
			want: syscall.EFAULT},
		{name: "to an IOVA that wraps", job: Job{Op: CopyToGuest}, table: []entry{{in, big, 16}}, want: syscall.EFAULT},
		{name: "from no RAM", job: Job{Op: CopyFromGuest}, table: []entry{{in, in, 1}}, want: syscall.EFAULT},
		{name: "from RAM to elsewhere", job: Job{Op: CopyFromGuest}, table: []entry{{ramAt, 0, 1}}, want: syscall.EFAULT},
		{name: "sum from elsewhere", job: Job{Op: Reduce, Seed: 1}, table: []entry{{in, in + 100, 8}, {in - 4, in, 8}},
			want: syscall.EFAULT, entry: 1, bytes: 8},
		{name: "sum to elsewhere", job: Job{Op: Reduce, Seed: 3}, table: []entry{{in, in + bufLen - 2, 4}},
			want: syscall.EFAULT},
		{name: "sum that wraps", job: Job{Op: Reduce, Seed: 2}, table: []entry{{big &^ 3, in, 1 << 31}}, want: syscall.EFAULT},
		{name: "half an element", job: Job{Op: Reduce, Seed: 2}, table: []entry{{in, in + 8, 6}}, want: syscall.EINVAL},
		{name: "sum to between elements", job: Job{Op: Reduce, Seed: 3}, table: []entry{{in, in + 9, 2}},
			want: syscall.EINVAL},
		{name: "reserved bytes", job: Job{Op: Gather, Entries: 1}, raw: append(table(entry{in, in, 1})[:20], 1, 0, 0, 0),
			want: syscall.EINVAL},
		{name: "table in no RAM", job: Job{Op: Gather, Entries: 1, Table: 8}, want: syscall.EFAULT},
		{name: "table over the end", job: Job{Op: Gather, Entries: 2, Table: ramAt + ramLen - EntryLen},
			want: syscall.EFAULT},
		{name: "table that wraps", job: Job{Op: Gather, Entries: MaxEntries, Table: big}, want: syscall.EFAULT},
		{name: "table elsewhere in the GPU", job: Job{Op: Gather, Entries: 1, TableInGPU: true}, want: syscall.EFAULT},
		{name: "table in the GPU that wraps", job: Job{Op: Gather, Entries: 2, TableInGPU: true, Table: big},
			want: syscall.EFAULT},
	} {
		t.Run(tc.name, func(t *testing.T) {
			b := newRig(t, EngineOptions{})
			if tc.table != nil {
				tc.raw, tc.job.Entries = table(tc.table...), uint32(len(tc.table))
			}
			if tc.raw != nil {
				b.write(123, tc.raw)
				tc.job.Table = ramAt + 123
			}
			ram := b.read(0, ramLen)
			s := b.run(tc.job)
			if s.Errno != tc.want || s.Entry != tc.entry || s.Bytes != tc.bytes {
				t.Fatalf("%+v", s)
			}
			b.othersUntouched()
			if !bytes.Equal(b.read(0, ramLen), ram) {
				t.Fatal("RAM was written")
			}
			if st := b.e.Stats(); st.Jobs != 1 || st.Failed != 1 {
				t.Fatalf("%+v", st)
			}
			b.good(Job{Op: Fill, Off: bufOff, Len: 4096, Seed: 1})
		})
	}
}

// Invariant: gpumem: Removing memory ends the jobs that still need it, and a reset of the engine
// ends all its jobs.
func TestMemoryGoesAway(t *testing.T) {
	for _, tc := range []struct {
		name string
		take func(b *rig) error
	}{
		{"buffer", func(b *rig) error { return b.reg.Unregister(1) }},
		{"all buffers", func(b *rig) error { b.reg.CloseAll(); return nil }},
		{"RAM", func(b *rig) error { return b.space.Remove(ramAt, ramLen/2) }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			b := newRig(t, EngineOptions{})
			const n = 1 << 15
			b.write(ramLen/2, bytes.Repeat(table(entry{bufOff, ramAt, 1 << 20}), n))
			id, err := b.e.Submit(Job{Op: CopyToGuest, Entries: n, Table: ramAt + ramLen/2})
			testkit.OK(t, err)
			for s, err := b.e.Poll(id); s.Bytes == 0; s, err = b.e.Poll(id) { // until the job has copied bytes
				if err != nil || s.Done {
					t.Fatalf("%+v, %v", s, err)
				}
			}
			testkit.OK(t, tc.take(b))
			b.write(0, make([]byte, 1<<20))
			if s := <-b.done; s.Errno != syscall.EFAULT || s.Bytes == 0 || s.Bytes == n<<20 {
				t.Fatalf("%+v", s)
			}
			if tc.name != "RAM" && !bytes.Equal(b.read(0, 1<<20), make([]byte, 1<<20)) {
				t.Fatal("written after the buffer was gone")
			}
		})
	}
}

// Jobs fail that use the lost part of a truncated RAM; another port's job works.
func TestTruncatedRAM(t *testing.T) {
	b, other := newRig(t, EngineOptions{}), newRig(t, EngineOptions{})
	b.write(0, table(entry{bufOff, ramAt + 2048, 1000}, entry{bufOff, ramAt + ramLen/2, 4096},
		entry{bufOff, ramAt + 4096, 4096}))
	testkit.OK(t, b.ram.Truncate(4096))
	if s := b.run(Job{Op: CopyToGuest, Entries: 3, Table: ramAt}); s.Errno != syscall.EIO || s.Entry != 1 ||
		s.Bytes != 1000 {
		t.Fatalf("%+v", s)
	}
	if s := b.run(Job{Op: Gather, Entries: 2, Table: ramAt + 4096}); s.Errno != syscall.EIO {
		t.Fatalf("table: %+v", s)
	}
	select {
	case <-b.space.Faulted():
	default:
		t.Fatal("the space was not told")
	}
	other.good(Job{Op: Fill, Off: bufOff, Len: bufLen, Seed: 3})
	testkit.Equal(t, "bytes of the other port that moved", MatchAt(other.gpu.peek(t, bufOff, bufLen), 3, 0), bufLen)
	b.good(Job{Op: Fill, Off: bufOff, Len: bufLen, Seed: 3}) // a job that needs no RAM works
}

// Invariant: gpumem: A job touches only the memory of its port's buffers and guest.
func FuzzEngine(f *testing.F) {
	b := newRig(f, EngineOptions{})
	seed := func(op Op, off, n uint64, inGPU bool, tab []byte) { f.Add(byte(op), off, n, inGPU, tab) }
	seed(Fill, bufOff, 100, false, nil)
	seed(SHA256, bufOff+bufLen-1, 2, false, nil)
	seed(Gather, 0, 0, false, table(entry{bufOff, bufOff + 5000, 100}, entry{bufOff + bufLen - 1, 0, 1}))
	seed(CopyToGuest, 0, 0, true, table(entry{bufOff, ramAt + ramLen/2 - 1, 2}))
	seed(CopyFromGuest, 0, 0, false, table(entry{ramAt, bufOff + bufLen - 1, 2}))
	f.Fuzz(func(t *testing.T, op byte, off, n uint64, inGPU bool, tab []byte) {
		j := Job{Op: Op(op), Off: off, Len: n, TableInGPU: inGPU, Table: ramAt + 64, Entries: uint32(len(tab) / EntryLen)}
		if len(tab) > 4096 {
			return
		}
		b.t = t
		if b.write(64, tab); inGPU {
			j.Table = bufOff + 64
			b.gpu.poke(t, j.Table, tab)
		}
		if id, err := b.e.Submit(j); err != nil {
			if id != 0 || !errors.Is(err, syscall.EINVAL) {
				t.Fatal(id, err)
			}
			return
		}
		if s := <-b.done; s.Errno != 0 && s.Errno != syscall.EFAULT && s.Errno != syscall.EINVAL {
			t.Fatalf("%+v", s)
		}
		b.othersUntouched()
	})
}
