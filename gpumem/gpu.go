package gpumem

import (
	"errors"
	"fmt"
	"syscall"

	"golang.org/x/sys/unix"
	"vnic.dev/vnic/dma"
	"vnic.dev/vnic/internal/memavail"
)

// Options are options of NewGPU.
type Options struct {
	Name string // name of the memfd; empty: "vnic-gpu" and the id
}

// GPU is the memory of one fake GPU. Several goroutines may call its methods.
type GPU struct {
	id     int
	fd     int
	file   *dma.File
	region *dma.Region
}

// fallocStep is the most bytes of one fallocate: a call that a signal interrupts is undone.
const fallocStep = 64 << 20

// NewGPU makes a GPU of size bytes, a positive multiple of 4 KiB; ids are 0 to dma.MaxGPUs-1. The memory is a memfd
// of fixed size, on Linux 6.3 and newer never executable. Its pages are allocated. EINVAL: a bad id or size; ENOSPC:
// not enough memory is available.
func NewGPU(files *dma.Files, id int, size uint64, o Options) (*GPU, error) {
	if id < 0 || id >= dma.MaxGPUs {
		return nil, fmt.Errorf("GPU %d: ids are 0 to %d: %w", id, dma.MaxGPUs-1, syscall.EINVAL)
	}
	if size == 0 || size%PageSize != 0 || size > 1<<62 {
		return nil, fmt.Errorf("GPU %d of %d bytes: not a multiple of %d: %w", id, size, PageSize, syscall.EINVAL)
	}
	if err := memavail.Enough(size, "/"); err != nil {
		return nil, fmt.Errorf("GPU %d: %w", id, err)
	}
	if o.Name == "" {
		o.Name = fmt.Sprintf("vnic-gpu%d", id)
	}
	const flags = unix.MFD_CLOEXEC | unix.MFD_ALLOW_SEALING
	fd, err := unix.MemfdCreate(o.Name, flags|unix.MFD_NOEXEC_SEAL) // mode 0666: QEMU opens it as /proc/PID/fd/N
	if errors.Is(err, syscall.EINVAL) {                             // before Linux 6.3
		fd, err = unix.MemfdCreate(o.Name, flags)
	}
	if err != nil {
		return nil, fmt.Errorf("GPU %d: memfd_create: %w", id, err)
	}
	g := &GPU{id: id, fd: fd}
	if err := g.open(files, size); err != nil {
		return nil, fmt.Errorf("GPU %d: %w", id, errors.Join(err, unix.Close(fd)))
	}
	return g, nil
}

func (g *GPU) open(files *dma.Files, size uint64) error {
	if err := allocate(g.fd, size); err != nil {
		return err
	}
	const seals = unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_SEAL
	if _, err := unix.FcntlInt(uintptr(g.fd), unix.F_ADD_SEALS, seals); err != nil {
		return fmt.Errorf("sealing its memory: %w", err)
	}
	file, err := files.Open(g.fd, size)
	if err != nil {
		return err
	}
	file.SetGPU(g.id)
	if g.region, err = file.Region(0, size); err != nil {
		file.Close()
		return err
	}
	g.file = file
	return nil
}

func allocate(fd int, size uint64) error {
	for off := uint64(0); off < size; {
		n := min(size-off, fallocStep)
		err := unix.Fallocate(fd, 0, int64(off), int64(n))
		switch err {
		case nil:
			off += n
		case syscall.EINTR:
		default:
			return fmt.Errorf("no memory for %s after %s of it: %w", memavail.Human(size), memavail.Human(off), err)
		}
	}
	return nil
}

// ID returns the GPU's number.
func (g *GPU) ID() int { return g.id }

// Size returns the size of the memory in bytes.
func (g *GPU) Size() uint64 { return g.region.Size() }

// FD returns the memfd, which the GPU still owns.
func (g *GPU) FD() int { return g.fd }

// File returns the memory as a mapped file.
func (g *GPU) File() *dma.File { return g.file }

// Region returns the memory as a region, valid until Close.
func (g *GPU) Region() *dma.Region { return g.region }

// Close unmaps the memory and closes the memfd. Nothing in this process may use the GPU any more.
func (g *GPU) Close() error {
	g.file.Close()
	return unix.Close(g.fd)
}

// segment returns [off, off+n) of the memory; n must fit in 32 bits.
func (g *GPU) segment(off, n uint64) dma.Segment { return g.region.Segment(off, uint32(n)) }
