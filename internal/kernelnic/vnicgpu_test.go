package kernelnic

import (
	"bytes"
	"fmt"
	"testing"

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/internal/control"
	"vnic.dev/vnic/internal/gpudriver"
	"vnic.dev/vnic/internal/testkit"
)

// Invariant: guest-images: The PCI device of the NIC's GPU is found by the address of its BAR,
// which the NIC reports.
func TestDeviceOfAGPU(t *testing.T) {
	const size = 64 << 20
	gpus := []gpudriver.GPU{
		{Path: "/dev/vnicgpu0", Addr: 0x4000_0000, Size: size},
		{Path: "/dev/vnicgpu1", Addr: 1 << 32, Size: size},
		{Path: "/dev/vnicgpu2", Addr: 0x8000_0000, Size: size},
		{Path: "/dev/vnicgpu3", Addr: 1 << 33, Size: size},
	}
	maps := []control.GPUMap{
		{GPU: 0, IOVA: 1 << 32, Size: size},
		{GPU: 1, IOVA: 0x4000_0000, Size: size},
		{GPU: 2, IOVA: 0x8000_0000 - 4096, Off: 1 << 20, Size: size + 4096}, // the map begins before the BAR
		{GPU: 3, IOVA: 1<<33 + 4096, Size: size},                            // the BAR begins before the map
		{GPU: 4, IOVA: 1 << 33, Size: size - 4096},                          // the BAR ends after the map
		{GPU: 5, IOVA: 1 << 40, Size: size},
		{GPU: 6, IOVA: 1 << 33, Size: size / 2}, // two maps, neither of all of the BAR
		{GPU: 6, IOVA: 1<<33 + size/2, Off: size / 2, Size: size / 2},
		{GPU: 7, IOVA: 0, Size: 1<<33 + size - 1},
	}
	for _, c := range []struct {
		gpu  int
		path string
		iova uint64
	}{
		{0, "/dev/vnicgpu1", 0}, {1, "/dev/vnicgpu0", 0}, {2, "/dev/vnicgpu2", 1<<20 + 4096},
		{gpu: 3}, {gpu: 4}, {gpu: 5}, {gpu: 6}, {gpu: 8},
	} {
		g, iova, err := findGPU(gpus, c.gpu, maps)
		if c.path == "" {
			testkit.ErrorIs(t, err, unix.ENODEV, "GPU %d, which is %s", c.gpu, g.Path)
			continue
		}
		testkit.NoError(t, err)
		if g.Path != c.path || iova != c.iova {
			t.Errorf("GPU %d: %s at %#x, and not %s at %#x", c.gpu, g.Path, iova, c.path, c.iova)
		}
	}
	// The map of GPU 7 begins at address 0, and ends one byte before the BAR of vnicgpu3 does.
	g, iova, err := findGPU(gpus[3:], 7, maps)
	testkit.ErrorIs(t, err, unix.ENODEV, "%s at %#x", g.Path, iova)
	testkit.ErrorSays(t, testkit.Err(takeErr(findGPU(nil, 0, maps))), "none of the 0 GPUs", "vnicgpu", "GPU 0")
}

func takeErr(g gpudriver.GPU, _ uint64, err error) (gpudriver.GPU, error) { return g, err }

// ofDriver makes a driver's window of one extent on ordinary memory. Its driver is a File without a device.
func ofDriver(base, size uint64) *Window {
	return &Window{gpu: 2, mem: make([]byte, size), driver: &gpudriver.File{}, base: base,
		extents: []Extent{{GPUOff: base, Size: size}}}
}

// Invariant: guest-images: A window from a GPU's driver is one piece, with each byte at its place.
func TestWindowOfADriverIsInOnePiece(t *testing.T) {
	const size = 2*hugePage + 3*gpudriver.PageSize // the last huge page is not complete
	w := ofDriver(8*hugePage, size)
	testkit.Equal(t, "size", w.Size(), size)
	pieces := testkit.Must(w.pieces(hugePage-1, hugePage+2))(t)
	if len(pieces) != 1 || pieces[0] != (Extent{Off: hugePage - 1, GPUOff: 9*hugePage - 1, Size: hugePage + 2}) {
		t.Errorf("pieces: %+v", pieces)
	}
	data := make([]byte, size-5)
	for i := range data {
		data[i] = byte(i*7>>3) | 1
	}
	if n, err := w.WriteAt(data, 3); n != len(data) || err != nil {
		t.Fatal(n, err)
	}
	if !bytes.Equal(w.mem[3:size-2], data) || bytes.Count(w.mem, []byte{0}) != 5 {
		t.Error("what was written is elsewhere")
	}
	got := make([]byte, len(data))
	if n, err := w.ReadAt(got, 3); n != len(got) || err != nil || !bytes.Equal(got, data) {
		t.Error("read:", n, err)
	}
	for off := uint64(0); off < size; {
		b := testkit.Must(w.Bytes(2, off, size-off))(t)
		if len(b) == 0 || &b[0] != &w.mem[off] {
			t.Fatalf("%d bytes at %#x are elsewhere", len(b), off)
		}
		off += uint64(len(b))
	}
	testkit.Equal(t, "bytes that are asked for", len(testkit.Must(w.Bytes(2, 5, 7))(t)), 7)
	testkit.ErrorIs(t, testkit.Err(w.Bytes(1, 0, 1)), unix.ENODEV)
	for _, bad := range [][2]uint64{{size, 1}, {size + 1, 0}, {1, size}, {^uint64(0), 2}, {1, ^uint64(0)}} {
		testkit.ErrorIs(t, testkit.Err(w.Bytes(2, bad[0], bad[1])), unix.EFAULT, "[%#x, +%#x)", bad[0], bad[1])
	}
	testkit.ErrorIs(t, testkit.Err(w.ReadAt(got, 6)), unix.EINVAL)
	testkit.ErrorIs(t, testkit.Err(w.ReadAt(got, -1)), unix.EINVAL)
	testkit.ErrorIs(t, testkit.Err(w.DMABuf(size-gpudriver.PageSize, 2*gpudriver.PageSize)), unix.EINVAL)
}

func TestSizeOfADriversWindow(t *testing.T) {
	for _, c := range []struct{ size, gpu, want uint64 }{
		{1, 64 << 20, hugePage}, {hugePage, 64 << 20, hugePage}, {hugePage + 1, 64 << 20, 2 * hugePage},
		{64 << 20, 64 << 20, 64 << 20}, {65 << 20, 64 << 20, 66 << 20}, // more than the GPU has
		{4096, 4096, 4096}, {1, 1 << 20, 1 << 20}, {1 << 20, 1 << 20, 1 << 20}, {1<<20 + 1, 1 << 20, hugePage},
	} {
		testkit.Equal(t, fmt.Sprintf("%d bytes of %d", c.size, c.gpu), driverSize(c.size, c.gpu), c.want)
	}
}

func TestWindowOfADriverOfNoSize(t *testing.T) {
	for _, size := range []uint64{0, 1<<46 + 1} {
		testkit.ErrorIs(t, testkit.Err(NewDriverWindow(0, size, nil)), unix.EINVAL, "%d", size)
	}
	testkit.ErrorIs(t, testkit.Err(NewDriverWindow(0, 4096, nil)), unix.ENODEV, "no driver here")
}
