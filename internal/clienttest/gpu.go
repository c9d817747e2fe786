package clienttest

import (
	"errors"
	"fmt"
	"os"
	"syscall"

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/devmem"
	"vnic.dev/vnic/devmem/kernel"
	"vnic.dev/vnic/devmem/plain"
	"vnic.dev/vnic/internal/devmemtest"
)

const (
	dataOff, dataSize       = 0, devmemtest.MemorySize
	poolOff, poolSize       = dataOff + dataSize, 4 << 20
	scratchOff, scratchSize = poolOff + poolSize, 2 << 20
	gpuSize                 = scratchOff + scratchSize
)

// gpu is the memory of GPU 0, which the CPU accesses through a mapping of its dma-buf. The code here does without
// DMA_BUF_IOCTL_SYNC, as caches are coherent with devices on x86.
type gpu struct {
	*kernel.UDMABuf
	mapped []byte
}

func newGPU(node int) (_ *gpu, err error) {
	g := &gpu{}
	if g.UDMABuf, err = kernel.NewUDMABuf(kernel.UDMABufOptions{Size: gpuSize, Node: node}); err != nil {
		return nil, err
	}
	fd, _, err := g.Export(0, 0, gpuSize)
	if err == nil {
		g.mapped, err = unix.Mmap(fd, 0, gpuSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
		err = errors.Join(os.NewSyscallError("mmap of a dma-buf", err), unix.Close(fd)) // the mapping keeps the dma-buf
	}
	if err != nil {
		return nil, errors.Join(err, g.Close())
	}
	return g, nil
}

// find returns the mapped bytes [off, off+size) of GPU 0. It refuses another id (ENODEV) and a range beyond the end
// (EFAULT).
func (g *gpu) find(id int, off, size uint64) ([]byte, error) {
	if id != 0 {
		return nil, fmt.Errorf("gpu %d: %w", id, syscall.ENODEV)
	}
	if off > gpuSize || size > gpuSize-off {
		return nil, fmt.Errorf("[%#x, +%#x) of gpu %d: %w", off, size, id, syscall.EFAULT)
	}
	return g.mapped[off : off+size : off+size], nil
}

func (g *gpu) memory() devmem.Memory { return plain.MapMemory(g.find) }

func (g *gpu) Close() error {
	var err error
	if g.mapped != nil {
		err = os.NewSyscallError("munmap", unix.Munmap(g.mapped))
		g.mapped = nil
	}
	return errors.Join(err, g.UDMABuf.Close())
}
