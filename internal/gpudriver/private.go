package gpudriver

import (
	"encoding/binary"
	"fmt"
	"reflect"
	"runtime"
)

const (
	migrate = 0xc020e903 // VNICGPU_MIGRATE: _IOWR(0xE9, 3, struct vnicgpu_migrate)
	where   = 0x4018e904 // VNICGPU_WHERE: _IOW(0xE9, 4, struct vnicgpu_where)

	toGPU = 1 // VNICGPU_TO_GPU
)

// Where a page is that is not in the GPU's memory.
const (
	InRAM  = 1<<64 - 1 // VNICGPU_RAM: in RAM, or in the memory of another device
	Absent = 1<<64 - 2 // VNICGPU_ABSENT: never touched, on a disk, or nothing is mapped there
)

// ToGPU moves the pages of memory to the GPU, where the CPU does not reach them: it gets those back that it touches.
// What is shared, pinned or a file's stays, and what the GPU has no room for. It gives how many were moved. Memory is
// whole pages.
func (f *File) ToGPU(memory []byte) (pages uint64, err error) { return f.migrate(memory, toGPU) }

// ToRAM moves pages of memory back, and gives how many.
func (f *File) ToRAM(memory []byte) (pages uint64, err error) { return f.migrate(memory, 0) }

func (f *File) migrate(memory []byte, flags uint32) (pages uint64, err error) {
	at := reflect.ValueOf(memory).Pointer()
	pages, err = f.Migrate(uint64(at), uint64(len(memory)), flags)
	runtime.KeepAlive(memory)
	return pages, err
}

// Migrate is ToGPU and ToRAM by address: for tests.
func (f *File) Migrate(addr, size uint64, flags uint32) (pages uint64, err error) {
	ne := binary.NativeEndian
	arg := ne.AppendUint64(ne.AppendUint64(nil, addr), size)
	arg = ne.AppendUint64(ne.AppendUint32(ne.AppendUint32(arg, flags), 0), 0)
	if err := f.call("VNICGPU_MIGRATE", migrate, arg); err != nil {
		return ne.Uint64(arg[24:]), fmt.Errorf("[%#x, +%#x): %w", addr, size, err)
	}
	return ne.Uint64(arg[24:]), nil
}

// Where says where each page of memory is, without moving any: at an offset in the GPU's memory, InRAM or Absent.
func (f *File) Where(memory []byte) (places []uint64, err error) {
	places = make([]uint64, len(memory)/PageSize)
	ne := binary.NativeEndian
	arg := ne.AppendUint64(ne.AppendUint64(nil, uint64(reflect.ValueOf(memory).Pointer())), uint64(len(memory)))
	arg = ne.AppendUint64(arg, uint64(reflect.ValueOf(places).Pointer()))
	err = f.call("VNICGPU_WHERE", where, arg)
	runtime.KeepAlive(memory)
	runtime.KeepAlive(places)
	return places, err
}
