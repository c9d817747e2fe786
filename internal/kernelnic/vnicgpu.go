package kernelnic

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/internal/control"
	"vnic.dev/vnic/internal/gpudriver"
)

// NewDriverWindow allocates at least size bytes from a GPU with the driver vnicgpu. It finds the PCI device
// by maps, which has the guest-physical addresses of GPU gpu's memory.
func NewDriverWindow(gpu int, size uint64, maps []control.GPUMap) (w *Window, err error) {
	if size == 0 || size > 1<<46 {
		return nil, fmt.Errorf("window of %d bytes: %w", size, unix.EINVAL)
	}
	list, err := gpudriver.List()
	if err != nil {
		return nil, err
	}
	g, iova, err := findGPU(list, gpu, maps)
	if err != nil {
		return nil, err
	}
	size = driverSize(size, g.Size)
	w = &Window{gpu: gpu}
	defer func() {
		if err != nil {
			err = fmt.Errorf("window of %d MiB of %s: %w", size>>20, g.Path, errors.Join(err, w.Close()))
			w = nil
		}
	}()
	if w.driver, err = gpudriver.Open(g.Path); err != nil {
		return w, err
	}
	w.undo.Add(w.driver.Close)
	if w.base, err = w.driver.Alloc(size, hugePage); err != nil {
		return w, err
	}
	w.extents = []Extent{{GPUOff: iova + w.base, Size: size}}
	if w.mem, err = w.driver.Mmap(w.base, size); err == nil {
		w.undo.Add(w.unmap)
	}
	return w, err
}

// driverSize rounds size up to huge pages, but not beyond gpu, the GPU's size, unless size itself is beyond it.
func driverSize(size, gpu uint64) uint64 {
	up := (size + hugePage - 1) &^ (hugePage - 1)
	if size <= gpu {
		return min(up, gpu)
	}
	return up
}

// findGPU returns the PCI device of GPU gpu, and as iova the offset in the GPU's memory at which the device's BAR
// begins. ENODEV: no map of the GPU contains all of the BAR of a device in list.
func findGPU(list []gpudriver.GPU, gpu int, maps []control.GPUMap) (g gpudriver.GPU, iova uint64, err error) {
	for _, g := range list {
		if iova, ok := locate(gpu, g.Addr, g.Size, maps); ok {
			return g, iova, nil
		}
	}
	return g, 0, fmt.Errorf("none of the %d GPUs that have the driver %s is GPU %d of the NIC: %w", len(list),
		gpudriver.Module, gpu, unix.ENODEV)
}

// OpenDriver opens the vnicgpu device of a GPU, found by maps; iova is where the device's memory begins in
// the GPU's memory. The caller closes f.
func OpenDriver(gpu int, maps []control.GPUMap) (f *gpudriver.File, iova uint64, err error) {
	list, err := gpudriver.List()
	if err != nil {
		return nil, 0, err
	}
	g, iova, err := findGPU(list, gpu, maps)
	if err != nil {
		return nil, 0, err
	}
	f, err = gpudriver.Open(g.Path)
	return f, iova, err
}
