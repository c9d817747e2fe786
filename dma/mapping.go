package dma

import (
	"cmp"
	"slices"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"
)

// mappings lists the mapped Files by address, to find the file of a memory fault, for which the Go runtime reports only
// an address. Whoever holds its lock takes no other lock and touches no mapped memory.
var mappings struct {
	mu    sync.Mutex
	files []*File // sorted by base; their mappings are disjoint
}

// mapFile maps size bytes of fd as f's memory, and adds f to mappings.
func (f *File) mapFile(fd int, size int) error {
	mem, err := unix.Mmap(fd, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return err
	}
	f.mem = mem
	f.base = uintptr(unsafe.Pointer(unsafe.SliceData(mem))) // base is not turned back into a pointer
	mappings.mu.Lock()
	defer mappings.mu.Unlock()
	i, _ := slices.BinarySearchFunc(mappings.files, f.base, byBase)
	mappings.files = slices.Insert(mappings.files, i, f)
	return nil
}

// unmap removes f from mappings and unmaps its memory.
func (f *File) unmap() {
	mappings.mu.Lock()
	if i, ok := slices.BinarySearchFunc(mappings.files, f.base, byBase); ok {
		mappings.files = slices.Delete(mappings.files, i, i+1)
	}
	mappings.mu.Unlock()
	_ = unix.Munmap(f.mem) // mem is the whole mapping that mapFile made, for which no error is expected
}

// fileAt returns the file that is mapped at addr, and the offset of addr in it; nil if no file is mapped there.
func fileAt(addr uintptr) (*File, uint64) {
	mappings.mu.Lock()
	defer mappings.mu.Unlock()
	i, ok := slices.BinarySearchFunc(mappings.files, addr, byBase)
	if !ok {
		i--
	}
	if i < 0 {
		return nil, 0
	}
	f := mappings.files[i]
	if off := uint64(addr - f.base); off < f.Size() {
		return f, off
	}
	return nil, 0
}

func byBase(f *File, addr uintptr) int { return cmp.Compare(f.base, addr) }
