package kernelnic

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/control"
)

// What the GPU's driver offers (guest-images/vnicgpu/vnicgpu.h).
const (
	vnicgpuAlloc  = 0xc018e901 // VNICGPU_ALLOC: _IOWR(0xE9, 1, struct vnicgpu_alloc)
	vnicgpuExport = 0xc018e902 // VNICGPU_EXPORT: _IOWR(0xE9, 2, struct vnicgpu_export)

	vnicgpuClass = "/sys/class/misc" // has vnicgpuN
	vnicgpuBAR   = 2
)

// VNICGPUModule is the kernel module of a GPU that is a PCI device with a driver.
const VNICGPUModule = "vnicgpu"

// vnicgpu is a GPU as its driver shows it.
type vnicgpu struct {
	path string // /dev/vnicgpuN
	pci  string // its address
	addr uint64 // guest-physical, of the BAR
	size uint64
}

// listVNICGPUs finds the GPUs that have the driver.
func listVNICGPUs(class string) (list []vnicgpu, err error) {
	names, err := filepath.Glob(filepath.Join(class, "vnicgpu*"))
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		dir, err := filepath.EvalSymlinks(filepath.Join(name, "device"))
		if err != nil {
			return nil, err
		}
		b, err := os.ReadFile(filepath.Join(dir, "resource"))
		if err != nil {
			return nil, err
		}
		g := vnicgpu{path: "/dev/" + filepath.Base(name), pci: filepath.Base(dir)}
		if g.addr, g.size, err = barOf(b); err != nil {
			return nil, fmt.Errorf("%s: %w", filepath.Join(dir, "resource"), err)
		}
		list = append(list, g)
	}
	return list, nil
}

// barOf reads the line of the BAR in a PCI device's resource: start, end and flags, in hexadecimal.
func barOf(resource []byte) (addr, size uint64, err error) {
	lines := bytes.Split(resource, []byte("\n"))
	if len(lines) <= vnicgpuBAR {
		return 0, 0, fmt.Errorf("%d lines: %w", len(lines), unix.EINVAL)
	}
	fields := strings.Fields(string(lines[vnicgpuBAR]))
	if len(fields) != 3 {
		return 0, 0, fmt.Errorf("BAR %d: %q: %w", vnicgpuBAR, lines[vnicgpuBAR], unix.EINVAL)
	}
	start, err1 := strconv.ParseUint(fields[0], 0, 64)
	end, err2 := strconv.ParseUint(fields[1], 0, 64)
	if err := errors.Join(err1, err2); err != nil {
		return 0, 0, err
	}
	if end <= start {
		return 0, 0, fmt.Errorf("BAR %d has no place: %w", vnicgpuBAR, unix.ENXIO)
	}
	return start, end - start + 1, nil
}

// NewDriverWindow takes size bytes, rounded up to huge pages, of a GPU that the driver vnicgpu has. maps says what of
// the guest's memory is where in GPU gpu, by which its device is found.
func NewDriverWindow(gpu int, size uint64, maps []control.GPUMap) (w *Window, err error) {
	if size == 0 || size > 1<<46 {
		return nil, fmt.Errorf("window of %d bytes: %w", size, unix.EINVAL)
	}
	size = (size + hugePage - 1) &^ (hugePage - 1)
	list, err := listVNICGPUs(vnicgpuClass)
	if err != nil {
		return nil, err
	}
	g, at, err := findVNICGPU(list, gpu, maps)
	if err != nil {
		return nil, err
	}
	w = &Window{gpu: gpu, fd: -1, restore: func() error { return nil }}
	defer func() {
		if err != nil {
			err = fmt.Errorf("window of %d MiB of %s: %w", size>>20, g.path, errors.Join(err, w.Close()))
			w = nil
		}
	}()
	if w.fd, err = unix.Open(g.path, unix.O_RDWR|unix.O_CLOEXEC, 0); err != nil {
		return w, os.NewSyscallError("open", err)
	}
	if w.base, err = allocVNICGPU(w.fd, size, hugePage); err != nil {
		return w, err
	}
	w.extents = []Extent{{GPUOff: at + w.base, Size: size}}
	w.mem, err = unix.Mmap(w.fd, int64(w.base), int(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	return w, os.NewSyscallError("mmap", err)
}

// findVNICGPU finds a GPU's device, and where in the GPU's memory its BAR begins.
func findVNICGPU(list []vnicgpu, gpu int, maps []control.GPUMap) (g vnicgpu, at uint64, err error) {
	for _, g := range list {
		for _, m := range maps {
			if int(m.GPU) == gpu && g.addr >= m.IOVA && g.addr-m.IOVA < m.Size && g.size <= m.Size-(g.addr-m.IOVA) {
				return g, m.Off + (g.addr - m.IOVA), nil
			}
		}
	}
	return g, 0, fmt.Errorf("none of the %d GPUs that have the driver %s is GPU %d of the NIC: %w", len(list),
		VNICGPUModule, gpu, unix.ENODEV)
}

// allocVNICGPU has memory be the open file's, until its last user is gone.
func allocVNICGPU(fd int, size, align uint64) (off uint64, err error) {
	ne := binary.NativeEndian
	arg := ne.AppendUint64(ne.AppendUint64(ne.AppendUint64(nil, size), align), 0)
	if err := vnicgpuCall(fd, vnicgpuAlloc, arg); err != nil {
		return 0, fmt.Errorf("VNICGPU_ALLOC: %w", err)
	}
	return ne.Uint64(arg[16:]), nil
}

// exportVNICGPU makes a dma-buf of memory that is the open file's.
func exportVNICGPU(fd int, off, size uint64) (dmabuf int, err error) {
	ne := binary.NativeEndian
	arg := ne.AppendUint64(ne.AppendUint64(nil, off), size)
	arg = ne.AppendUint32(ne.AppendUint32(arg, unix.O_CLOEXEC), 0)
	if err := vnicgpuCall(fd, vnicgpuExport, arg); err != nil {
		return -1, fmt.Errorf("VNICGPU_EXPORT of [%#x, +%#x): %w", off, size, err)
	}
	return int(int32(ne.Uint32(arg[20:]))), nil
}

func vnicgpuCall(fd int, request uintptr, arg []byte) error {
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), request, reflect.ValueOf(arg).Pointer())
	runtime.KeepAlive(arg)
	if errno != 0 {
		return errno
	}
	return nil
}
