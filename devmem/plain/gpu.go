package plain

import (
	"fmt"
	"os"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/devmem"
)

// GPU is ordinary memory that plays the role of a GPU's.
type GPU struct {
	mem   []byte
	close func() error
}

// NewGPU allocates size bytes of zeros. EINVAL: size is 0, not a multiple of devmem.PageSize, or above 64 TiB.
func NewGPU(size uint64) (*GPU, error) {
	if size == 0 || size%devmem.PageSize != 0 || size > 1<<46 {
		return nil, fmt.Errorf("gpu of %#x bytes: not whole pages, or beyond all memory: %w", size, syscall.EINVAL)
	}
	const flags = unix.MAP_PRIVATE | unix.MAP_ANONYMOUS | unix.MAP_NORESERVE
	b, err := unix.Mmap(-1, 0, int(size), unix.PROT_READ|unix.PROT_WRITE, flags)
	if err != nil {
		return nil, fmt.Errorf("gpu of %#x bytes: %w", size, os.NewSyscallError("mmap", err))
	}
	return &GPU{b, sync.OnceValue(func() error { return os.NewSyscallError("munmap", unix.Munmap(b)) })}, nil
}

// Bytes returns the memory, valid until Close.
func (g *GPU) Bytes() []byte { return g.mem }

// Size returns the size of the memory in bytes.
func (g *GPU) Size() uint64 { return uint64(len(g.mem)) }

// Close releases the memory; nothing may access it afterwards. Later calls return the first call's result.
func (g *GPU) Close() error { return g.close() }
