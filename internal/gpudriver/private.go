package gpudriver

import (
	"fmt"
	"reflect"
	"runtime"
)

const (
	migrate = 0xc020e903 // VNICGPU_MIGRATE: _IOWR(0xE9, 3, struct vnicgpu_migrate)
	where   = 0x4018e904 // VNICGPU_WHERE: _IOW(0xE9, 4, struct vnicgpu_where)

	toGPU = 1 // VNICGPU_TO_GPU
)

// Results of [File.Where] for a page that is not in the GPU's memory.
const (
	InRAM  = 1<<64 - 1 // VNICGPU_RAM: in RAM
	Absent = 1<<64 - 2 // VNICGPU_ABSENT: not present, or in another GPU
)

// ToGPU moves pages of memory to the GPU, and returns how many, also after an error. A page that a CPU touches later
// is moved back. Pages that cannot be moved stay. memory must be whole pages.
func (f *File) ToGPU(memory []byte) (pages uint64, err error) { return f.migrate(memory, toGPU) }

// ToRAM moves pages of memory from the GPU back to RAM, and returns how many, also after an error.
func (f *File) ToRAM(memory []byte) (pages uint64, err error) { return f.migrate(memory, 0) }

func (f *File) migrate(memory []byte, flags uint32) (pages uint64, err error) {
	addr := reflect.ValueOf(memory).Pointer()
	pages, err = f.Migrate(uint64(addr), uint64(len(memory)), flags)
	runtime.KeepAlive(memory)
	return pages, err
}

// Migrate is ToGPU (flags 1) or ToRAM (flags 0) by address. It is exported for tests.
func (f *File) Migrate(addr, size uint64, flags uint32) (pages uint64, err error) {
	arg := struct {
		Addr, Size uint64
		Flags, _   uint32
		Pages      uint64
	}{Addr: addr, Size: size, Flags: flags}
	if err := f.ioctl("VNICGPU_MIGRATE", migrate, &arg); err != nil {
		return arg.Pages, fmt.Errorf("[%#x, +%#x): %w", addr, size, err)
	}
	return arg.Pages, nil
}

// Where returns the location of each page of memory: an offset in the GPU's memory, [InRAM] or [Absent]. memory must
// be whole pages. E2BIG: more than 1<<20 pages.
func (f *File) Where(memory []byte) (places []uint64, err error) {
	places = make([]uint64, len(memory)/PageSize)
	arg := [...]uint64{uint64(reflect.ValueOf(memory).Pointer()), uint64(len(memory)),
		uint64(reflect.ValueOf(places).Pointer())}
	err = f.ioctl("VNICGPU_WHERE", where, &arg)
	runtime.KeepAlive(memory)
	runtime.KeepAlive(places)
	return places, err
}
