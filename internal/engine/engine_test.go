package engine_test

import (
	"errors"
	"testing"

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/devmem"
	"vnic.dev/vnic/internal/devmemtest"
	"vnic.dev/vnic/internal/driver"
	"vnic.dev/vnic/internal/engine"
	"vnic.dev/vnic/internal/lab"
	"vnic.dev/vnic/internal/lab/labtest"
	"vnic.dev/vnic/internal/testkit"
	"vnic.dev/vnic/stack"
)

type file struct {
	fd  int
	off int64
}

func (f file) ReadAt(b []byte, off int64) (int, error)  { return unix.Pread(f.fd, b, f.off+off) }
func (f file) WriteAt(b []byte, off int64) (int, error) { return unix.Pwrite(f.fd, b, f.off+off) }

// Invariant: devmem/engine: GPUs' engines implement devmem.Memory as package devmem specifies it,
// and touch no other byte.
func TestMemory(t *testing.T) {
	testkit.LeavesNothing(t)
	for _, c := range devmemtest.MemoryCases() {
		t.Run(c.Name, func(t *testing.T) {
			d := lab.Uniform(1, lab.NIC{Model: lab.Virtio, QueuePairs: 2}, 16<<20)
			d.Guests[0].GPUs = append(d.Guests[0].GPUs, lab.GPU{Name: "other", Memory: 16 << 20})
			l := testkit.Must(lab.Open(d, lab.Options{Log: labtest.Log(t)}))(t)
			defer func() { testkit.OK(t, l.Close()) }()
			n := testkit.Must(l.Port(0).InProcess(driver.Options{QueuePairs: 2, HostQueues: 1}))(t)
			s := testkit.Must(stack.New(n, n.Control(), stack.Options{}))(t)
			defer func() { testkit.OK(t, s.Close()) }()
			w := &devmemtest.MemoryWorld{Memory: engine.New(n.Control(), n)}
			register := func(gpu int, off uint64) devmem.Buffer {
				return testkit.Must(s.Register(gpu, off, devmemtest.MemorySize))(t)
			}
			fd := l.Port(0).GPU().GPU.FD()
			for i := range w.Buffers {
				off := uint64(i+1) * devmemtest.MemorySize
				w.Buffers[i] = register(0, off)
				w.Contents[i] = file{fd, int64(off)}
			}
			w.Other = register(1, 0)
			c.Run(t, w)
		})
	}
}

// A call for which no memory can be had fails, and leaves its place to the next one.
func TestNoMemoryForJobs(t *testing.T) {
	d := lab.Uniform(1, lab.NIC{Model: lab.Virtio, QueuePairs: 2}, 16<<20)
	l := testkit.Must(lab.Open(d, lab.Options{Log: labtest.Log(t)}))(t)
	defer func() { testkit.OK(t, l.Close()) }()
	n := testkit.Must(l.Port(0).InProcess(driver.Options{QueuePairs: 2, HostQueues: 1}))(t)
	s := testkit.Must(stack.New(n, n.Control(), stack.Options{}))(t)
	defer func() { testkit.OK(t, s.Close()) }()
	b := testkit.Must(s.Register(0, 0, devmemtest.MemorySize))(t)
	m := engine.New(n.Control(), &failing{n, 5})
	for range 5 {
		err := m.Put(t.Context(), b, 8, []byte("lost"))
		testkit.ErrorIs(t, err, errNone)
		testkit.ErrorSays(t, err, "put: memory for jobs: ")
	}
	testkit.OK(t, m.Put(t.Context(), b, 8, []byte("here")))
	got := make([]byte, 6)
	testkit.OK(t, m.Get(t.Context(), got, b, 7))
	testkit.Equal(t, "bytes", string(got), "\x00here\x00")
	testkit.OK(t, m.Gather(t.Context(), b, b, nil)) // no job: nothing to copy
}

var errNone = errors.New("no memory")

// failing fails n times.
type failing struct {
	engine.DMA
	n int
}

func (f *failing) AllocDMA(size int) ([]byte, uint64, error) {
	if f.n--; f.n >= 0 {
		return nil, 0, errNone
	}
	return f.DMA.AllocDMA(size)
}
