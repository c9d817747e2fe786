// Package gpudriver is the interface for a guest's programs to the GPU's driver, vnicgpu.ko, through its
// devices (guest-images/vnicgpu/vnicgpu.h).
package gpudriver

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Module is the driver's name.
const Module = "vnicgpu"

// PageSize is the size of a page, in bytes. Sizes and offsets of the GPU's memory are multiples of it.
const PageSize = 4096

const (
	getInfo   = 0x8040e900 // VNICGPU_GET_INFO: _IOR(0xE9, 0, struct vnicgpu_info)
	alloc     = 0xc018e901 // VNICGPU_ALLOC: _IOWR(0xE9, 1, struct vnicgpu_alloc)
	exportBuf = 0xc018e902 // VNICGPU_EXPORT: _IOWR(0xE9, 2, struct vnicgpu_export)

	class = "/sys/class/misc"
	bar   = 2
)

const version = 1

// GPU is a GPU of this guest that is bound to the driver.
type GPU struct {
	Path string
	PCI  string // its PCI address, for example 0000:01:00.0
	Addr uint64 // guest-physical address of its memory
	Size uint64 // of its memory, in bytes
}

// List returns the GPUs that are bound to the driver, in the lexical order of their devices' names.
func List() ([]GPU, error) { return list(class) }

func list(class string) (gpus []GPU, err error) {
	names, err := filepath.Glob(filepath.Join(class, Module+"*"))
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		dir, err := filepath.EvalSymlinks(filepath.Join(name, "device"))
		if err != nil {
			return nil, err
		}
		path := filepath.Join(dir, "resource")
		b, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		g := GPU{Path: "/dev/" + filepath.Base(name), PCI: filepath.Base(dir)}
		if g.Addr, g.Size, err = barOf(b); err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		gpus = append(gpus, g)
	}
	return gpus, nil
}

func barOf(resource []byte) (addr, size uint64, err error) {
	lines := bytes.Split(resource, []byte("\n"))
	if len(lines) <= bar {
		return 0, 0, fmt.Errorf("%d lines: %w", len(lines), unix.EINVAL)
	}
	fields := strings.Fields(string(lines[bar]))
	if len(fields) != 3 {
		return 0, 0, fmt.Errorf("BAR %d: %q: %w", bar, lines[bar], unix.EINVAL)
	}
	start, err1 := strconv.ParseUint(fields[0], 0, 64)
	end, err2 := strconv.ParseUint(fields[1], 0, 64)
	if err := errors.Join(err1, err2); err != nil {
		return 0, 0, fmt.Errorf("BAR %d: %w", bar, err)
	}
	if end <= start || end-start == math.MaxUint64 { // 1<<64 bytes do not fit in size
		return 0, 0, fmt.Errorf("BAR %d has no place: %w", bar, unix.ENXIO)
	}
	return start, end - start + 1, nil
}

// File is an open device. The open file owns the memory that it allocates, until all its descriptors are closed and
// none of its mappings and dma-bufs is left.
type File struct{ fd int }

// Open opens a GPU's device. ENODEV: the driver has another version than this package, or the GPU was removed after
// path was found.
func Open(path string) (*File, error) {
	fd, err := unix.Open(path, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: path, Err: err}
	}
	f := &File{fd}
	info, err := f.Info()
	if err == nil && info.Version != version {
		err = fmt.Errorf("version %d of the driver, and not %d: %w", info.Version, version, unix.ENODEV)
	}
	if err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return f, nil
}

// Close closes the descriptor of the device.
func (f *File) Close() error { return os.NewSyscallError("close", unix.Close(f.fd)) }

// Info is the driver's information about a GPU (struct vnicgpu_info).
type Info struct {
	Version uint32
	Mapped  uint32 // present mappings of dma-bufs for devices
	Size    uint64 // of the memory, in bytes
	Free    uint64 // in bytes, in one piece or several

	// Pages of programs: Private are in the GPU's memory now. The others count moves: to the GPU, back to RAM on
	// request (ToRAM), because a CPU touched the page or for a [Region.Fault] (Faulted), and by the GPU's removal.
	Private, ToGPU, ToRAM, Faulted, Evicted uint64
}

// Info returns the driver's information about the GPU.
func (f *File) Info() (i Info, err error) {
	err = f.ioctl("VNICGPU_GET_INFO", getInfo, &i)
	return i, err
}

// Alloc allocates zeroed memory in one piece, and returns its offset in the GPU's memory, a multiple of align. align
// is a power of two from PageSize to 1<<30, or 0 for PageSize. ENOMEM: there is no such free piece.
func (f *File) Alloc(size, align uint64) (off uint64, err error) {
	arg := struct{ Size, Align, Off uint64 }{Size: size, Align: align}
	if err := f.ioctl("VNICGPU_ALLOC", alloc, &arg); err != nil {
		return 0, fmt.Errorf("%d bytes: %w", size, err)
	}
	return arg.Off, nil
}

// Export makes a dma-buf of memory that f has allocated. The caller owns the descriptor. EACCES: the range is not in
// one allocation of f.
func (f *File) Export(off, size uint64) (fd int, err error) {
	arg := struct {
		Off, Size uint64
		Flags     uint32
		FD        int32
	}{Off: off, Size: size, Flags: unix.O_CLOEXEC}
	if err := f.ioctl("VNICGPU_EXPORT", exportBuf, &arg); err != nil {
		return -1, fmt.Errorf("[%#x, +%#x): %w", off, size, err)
	}
	return int(arg.FD), nil
}

// Mmap maps memory that f has allocated. The caller unmaps it. EACCES: as for Export.
func (f *File) Mmap(off, size uint64) ([]byte, error) {
	b, err := unix.Mmap(f.fd, int64(off), int(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	return b, os.NewSyscallError("mmap", err)
}

// MmapPrivate tries to map memory as a private copy (MAP_PRIVATE), which the driver should refuse. If it did not,
// MmapPrivate unmaps the memory again.
func (f *File) MmapPrivate(off, size uint64) error {
	b, err := unix.Mmap(f.fd, int64(off), int(size), unix.PROT_READ, unix.MAP_PRIVATE)
	if err == nil {
		_ = unix.Munmap(b)
	}
	return os.NewSyscallError("mmap", err)
}

// Raw makes the ioctl request with the argument arg, for tests.
func (f *File) Raw(request uintptr, arg []byte) error {
	return f.call(fmt.Sprintf("%#x", request), request, arg)
}

// ioctl makes a call. arg points to fields of fixed size, without padding, in the driver's layout, and gets
// what the driver has written, also after an error.
func (f *File) ioctl(name string, request uintptr, arg any) error {
	b, err := binary.Append(nil, binary.NativeEndian, arg)
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	err = f.call(name, request, b)
	_, derr := binary.Decode(b, binary.NativeEndian, arg)
	return errors.Join(err, derr)
}

func (f *File) call(name string, request uintptr, arg []byte) error {
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(f.fd), request, reflect.ValueOf(arg).Pointer())
	runtime.KeepAlive(arg)
	if errno != 0 {
		return fmt.Errorf("%s: %w", name, errno)
	}
	return nil
}
