package gpumem

import (
	"errors"
	"fmt"
	"slices"
	"syscall"
	"testing"
	"testing/synctest"

	"vnic.dev/vnic/dma"
	"vnic.dev/vnic/internal/testkit"
)

// Invariant: dma: Only registered ranges of a GPU's file count as device memory.
func TestRegisteredBuffersAreDeviceMemory(t *testing.T) {
	files := dma.NewFiles()
	noLeak(t, files)
	g0, g1 := newGPU(t, files, 0, 64<<10), newGPU(t, files, 1, 64<<10)
	r := NewRegistry([]*GPU{g0, g1}, 3)
	domain := func(g *GPU, off uint64) dma.MemKind { d, _ := g.File().MemKind(off); return d }
	id, err := r.RegisterBuffer(1, 8192, 8192)
	if err != nil || id != 1 {
		t.Fatal(id, err)
	}
	if domain(g1, 8191) != dma.GPUFile || domain(g1, 8192) != dma.GPU || domain(g1, 16383) != dma.GPU ||
		domain(g1, 16384) != dma.GPUFile || domain(g0, 8192) != dma.GPUFile {
		t.Fatal("other bytes than the buffer's are registered")
	}
	testkit.Equal(t, "buffer", r.now.Load().list[0], Buffer{1, 1, 8192, 8192})
	for _, tc := range []struct {
		gpu       int
		off, size uint64
		want      error
	}{
		{2, 0, 4096, syscall.ENODEV}, {-1, 0, 4096, syscall.ENODEV}, {0, 0, 0, syscall.EINVAL}, {0, 1, 4096, syscall.EINVAL},
		{0, 0, 4097, syscall.EINVAL}, {0, 60 << 10, 8192, syscall.EINVAL}, {0, 1<<64 - 4096, 8192, syscall.EINVAL},
		{0, 4096, 1<<64 - 4096, syscall.EINVAL},
	} {
		wantErr(t, fmt.Sprintf("%+v", tc), errOf(r.RegisterBuffer(tc.gpu, tc.off, tc.size)), tc.want)
	}
	if err := r.Unregister(id); err != nil || domain(g1, 8192) != dma.GPUFile {
		t.Fatal(err)
	}
	wantErr(t, "twice", r.Unregister(id), syscall.ENOENT)
	for i := range 4 {
		id, err := r.RegisterBuffer(0, 0, 8192) // the same range each time; the fourth is too many
		if i < 3 && (err != nil || id != uint32(i+2)) || i == 3 && !errors.Is(err, syscall.ENOSPC) {
			t.Fatal(id, err)
		}
	}
	if err := r.Unregister(3); err != nil || domain(g0, 0) != dma.GPU {
		t.Fatal("registered twice more:", err)
	}
	r.CloseAll()
	if len(r.now.Load().list) != 0 || domain(g0, 0) != dma.GPUFile {
		t.Fatal("buffers outlive CloseAll")
	}
	if id, err := r.RegisterBuffer(0, 0, 4096); err != nil || id != 5 {
		t.Fatal("afterwards:", id, err)
	}
	testkit.OK(t, r.Unregister(5))
	if !slices.Equal(r.gpus, []*GPU{g0, g1}) || r.GPU(1) != g1 || r.GPU(7) != nil {
		t.Fatal("GPUs")
	}
}

func TestUnregisterWaitsForPieces(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		files := dma.NewFiles()
		r := NewRegistry([]*GPU{newGPU(t, files, 0, 64<<10)}, 8)
		a, _ := r.RegisterBuffer(0, 0, 4096)
		b, _ := r.RegisterBuffer(0, 4096, 4096)
		first, inFirst := r.enter()
		gone := make(chan error, 2)
		go func() { gone <- r.Unregister(a) }()
		synctest.Wait()
		testkit.Equal(t, "buffers taken away under a piece", len(gone), 0)
		second, inSecond := r.enter() // this table does not contain buffer a
		if second.covers(0, 0, 1) || !second.covers(0, 4096, 4096) || !first.covers(0, 0, 1) {
			t.Fatal("tables")
		}
		go func() { gone <- r.Unregister(b) }()
		synctest.Wait()
		r.leave(inFirst)
		synctest.Wait()
		testkit.Equal(t, "buffers gone", len(gone), 1)
		r.leave(inSecond)
		testkit.OK(t, errors.Join(<-gone, <-gone))
	})
}
