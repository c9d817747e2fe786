package kernel

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/devmem"
)

// UDMABufOptions are the options of NewUDMABuf.
type UDMABufOptions struct {
	Size uint64 // bytes of GPU 0's memory, whole pages
	Node int    // NUMA node of the memory, up to 63; negative: any
}

// UDMABuf is an Exporter for machines without a GPU: GPU 0 is a memfd, and its dma-bufs come from /dev/udmabuf.
// The parameter size_limit_mb of the kernel's module udmabuf limits a dma-buf's size.
type UDMABuf struct {
	dev   int
	memfd int
	mem   []byte
	once  sync.Once
}

// NewUDMABuf allocates the memory. Among the errors are EINVAL (a bad size or node) and ENOENT (no /dev/udmabuf).
func NewUDMABuf(o UDMABufOptions) (_ *UDMABuf, err error) {
	if o.Size == 0 || o.Size%devmem.PageSize != 0 || o.Size > 1<<47 {
		return nil, fmt.Errorf("udmabuf of %#x bytes: not whole pages: %w", o.Size, syscall.EINVAL)
	}
	u := &UDMABuf{dev: -1, memfd: -1}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("udmabuf of %#x bytes: %w", o.Size, err), u.Close())
		}
	}()
	if u.dev, err = unix.Open("/dev/udmabuf", unix.O_RDWR|unix.O_CLOEXEC, 0); err != nil {
		return nil, &os.PathError{Op: "open", Path: "/dev/udmabuf", Err: err}
	}
	if u.memfd, err = unix.MemfdCreate("gpu", unix.MFD_ALLOW_SEALING|unix.MFD_CLOEXEC); err != nil {
		return nil, os.NewSyscallError("memfd_create", err)
	}
	if err := unix.Ftruncate(u.memfd, int64(o.Size)); err != nil {
		return nil, os.NewSyscallError("ftruncate", err)
	}
	// The memfd must have F_SEAL_SHRINK (drivers/dma-buf/udmabuf.c:check_memfd_seals).
	if _, err := unix.FcntlInt(uintptr(u.memfd), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW); err != nil {
		return nil, os.NewSyscallError("F_ADD_SEALS", err)
	}
	if u.mem, err = unix.Mmap(u.memfd, 0, int(o.Size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED); err != nil {
		return nil, os.NewSyscallError("mmap", err)
	}
	if o.Node >= 0 { // the memfd (shmem) keeps the policy of this mapping
		if err := bindToNode(u.mem, o.Node); err != nil {
			return nil, os.NewSyscallError("mbind", err)
		}
	}
	if err := unix.Madvise(u.mem, unix.MADV_POPULATE_WRITE); err != nil {
		return nil, os.NewSyscallError("MADV_POPULATE_WRITE", err)
	}
	return u, nil
}

// Export implements Exporter.
func (u *UDMABuf) Export(gpu int, off, size uint64) (fd int, release func() error, err error) {
	if gpu != 0 {
		return -1, nil, fmt.Errorf("no gpu %d: %w", gpu, syscall.ENODEV)
	}
	if n := uint64(len(u.mem)); off > n || size > n-off {
		return -1, nil, fmt.Errorf("ends past the %#x bytes of gpu 0: %w", n, syscall.EINVAL)
	}
	fd, err = createUDMABuf(u.dev, u.memfd, off, size)
	if err != nil {
		return -1, nil, fmt.Errorf("UDMABUF_CREATE of %#x bytes (see udmabuf.size_limit_mb): %w", size, err)
	}
	return fd, nil, nil
}

// Bytes returns the memory as the CPU sees it, valid until Close.
func (u *UDMABuf) Bytes() []byte { return u.mem }

// FD returns the memfd, which Close closes.
func (u *UDMABuf) FD() int { return u.memfd }

// Close releases the memory; a dma-buf that still exists keeps its part. Later calls return nil.
func (u *UDMABuf) Close() error {
	var errs []error
	u.once.Do(func() {
		if u.mem != nil {
			errs = append(errs, os.NewSyscallError("munmap", unix.Munmap(u.mem)))
		}
		for _, fd := range []int{u.memfd, u.dev} {
			if fd >= 0 {
				errs = append(errs, os.NewSyscallError("close", unix.Close(fd)))
			}
		}
	})
	return errors.Join(errs...)
}

var _ Exporter = (*UDMABuf)(nil)
