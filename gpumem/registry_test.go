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
	testkit.Equal(t, "buffer", r.now.list[0], Buffer{1, 1, 8192, 8192})
	for _, tc := range []struct {
		gpu       int
		off, size uint64
		want      error
	}{
		{2, 0, 4096, syscall.ENODEV}, {-1, 0, 4096, syscall.ENODEV}, {0, 0, 0, syscall.EINVAL}, {0, 1, 4096, syscall.EINVAL},
		{0, 0, 4097, syscall.EINVAL}, {0, 60 << 10, 8192, syscall.EINVAL}, {0, 1<<64 - 4096, 8192, syscall.EINVAL},
		{0, 4096, 1<<64 - 4096, syscall.EINVAL},
	} {
		is(t, fmt.Sprintf("%+v", tc), errOf(r.RegisterBuffer(tc.gpu, tc.off, tc.size)), tc.want)
	}
	if err := r.Unregister(id); err != nil || domain(g1, 8192) != dma.GPUFile {
		t.Fatal(err)
	}
	is(t, "twice", r.Unregister(id), syscall.ENOENT)
	for i := range 4 {
		id, err := r.RegisterBuffer(0, 0, 8192) // the same range may be registered several times
		if i < 3 && (err != nil || id != uint32(i+2)) || i == 3 && !errors.Is(err, syscall.ENOSPC) {
			t.Fatal(id, err)
		}
	}
	if err := r.Unregister(3); err != nil || domain(g0, 0) != dma.GPU {
		t.Fatal("registered twice more:", err)
	}
	r.CloseAll()
	if len(r.now.list) != 0 || domain(g0, 0) != dma.GPUFile {
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

// TestUnregisterWaitsForPieces: only for those that may use the buffer.
func TestUnregisterWaitsForPieces(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		files := dma.NewFiles()
		r := NewRegistry([]*GPU{newGPU(t, files, 0, 64<<10)}, 8)
		a, _ := r.RegisterBuffer(0, 0, 4096)
		b, _ := r.RegisterBuffer(0, 4096, 4096)
		first := r.enter()
		gone := make(chan error, 2)
		go func() { gone <- r.Unregister(a) }()
		synctest.Wait()
		testkit.Equal(t, "buffers taken away under a piece", len(gone), 0)
		second := r.enter() // does not wait, and does not see the buffer
		if second.covers(0, 0, 1) || !second.covers(0, 4096, 4096) || !first.covers(0, 0, 1) {
			t.Fatal("tables")
		}
		go func() { gone <- r.Unregister(b) }()
		synctest.Wait()
		r.leave(first)
		synctest.Wait()
		testkit.Equal(t, "buffers gone", len(gone), 1)
		r.leave(second)
		testkit.OK(t, errors.Join(<-gone, <-gone))
		testkit.Equal(t, "old tables", len(r.old), 0)
	})
}

func TestPaths(t *testing.T) {
	tree := NewTopology()
	for _, err := range []error{
		tree.AddRoot("rc0", true), tree.AddRoot("rc1", false),
		tree.AddSwitch("sw0", "rc0", false), tree.AddSwitch("sw1", "sw0", true), tree.AddSwitch("sw2", "rc1", false),
		tree.AddDevice("nic0", "sw0"), tree.AddDevice("gpu0", "sw0"), // same switch
		tree.AddDevice("gpu1", "sw1"), tree.AddDevice("gpu2", "sw1"), // behind one that redirects
		tree.AddDevice("gpu3", "rc0"), tree.AddDevice("gpu4", "sw2"), tree.AddDevice("gpu5", "rc1"),
	} {
		testkit.OK(t, err)
	}
	for _, tc := range []struct {
		a, b string
		want PathKind
	}{
		{"nic0", "gpu0", PathBus}, {"gpu0", "nic0", PathBus},
		{"nic0", "gpu1", PathBus}, // over sw0
		{"gpu1", "gpu2", PathBus}, // sent up by sw1, turned round by sw0
		{"nic0", "gpu3", PathHostBridge},
		{"nic0", "gpu4", PathNone}, // two root complexes
		{"gpu4", "gpu5", PathNone}, // one that does not forward
	} {
		p, err := tree.Path(tc.a, tc.b)
		if err != nil || p.Kind != tc.want || p.Reason == "" || p.P2P() != (tc.want != PathNone) {
			t.Errorf("%s to %s: %v %q, %v", tc.a, tc.b, p.Kind, p.Reason, err)
		}
	}
	if tree.PathName("gpu1") != "rc0/sw0/sw1/gpu1" || tree.PathName("x") != "" {
		t.Error(tree.PathName("gpu1"))
	}
	for name, err := range map[string]error{
		"same name":     tree.AddDevice("gpu0", "rc0"),
		"below nothing": tree.AddDevice("gpu9", "sw9"),
		"below a GPU":   tree.AddDevice("gpu9", "gpu0"),
		"no name":       tree.AddRoot("", true),
		"slash":         tree.AddRoot("a/b", true),
	} {
		if err == nil {
			t.Errorf("%s: taken", name)
		}
	}
	is(t, "path to a switch", errOf(tree.Path("nic0", "sw0")), syscall.ENOENT)
	testkit.Equal(t, "kinds", fmt.Sprint(PathNone, PathBus, PathHostBridge), "none bus host bridge")
	tree.SetOff(true)
	if p, err := tree.Path("nic0", "gpu0"); err != nil || p.P2P() {
		t.Errorf("off: %v %v", p, err)
	}
}
