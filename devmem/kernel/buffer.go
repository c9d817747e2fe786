package kernel

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/devmem"
	"vnic.dev/vnic/internal/devmembase"
)

// dmabuf is a dma-buf for one binding at a time.
type dmabuf struct {
	fd      int
	release func() error
	refs    int64 // number of references while no binding of the kernel has one
}

func (b *dmabuf) close() error {
	err := os.NewSyscallError("close", unix.Close(b.fd))
	if b.release != nil {
		err = errors.Join(err, b.release())
	}
	return err
}

// dmabufRefs returns a dma-buf's number of references (drivers/dma-buf/dma-buf.c:dma_buf_show_fdinfo).
func dmabufRefs(fd int) (int64, error) {
	f, err := os.Open("/proc/self/fdinfo/" + strconv.Itoa(fd))
	if err != nil {
		return 0, err
	}
	defer func() { _ = f.Close() }()
	for s := bufio.NewScanner(f); s.Scan(); {
		if n, ok := strings.CutPrefix(s.Text(), "count:"); ok {
			return strconv.ParseInt(strings.TrimSpace(n), 10, 64)
		}
	}
	return 0, fmt.Errorf("descriptor %d is not of a dma-buf: %w", fd, syscall.EINVAL)
}

type buffer struct {
	devmembase.Region
	d *Device

	spare  *dmabuf // a dma-buf that no binding uses, or nil
	closed bool
}

// Register implements devmem.Device.
func (d *Device) Register(gpu int, off, size uint64) (devmem.Buffer, error) {
	fail := func(err error) (devmem.Buffer, error) {
		return nil, fmt.Errorf("register %#x+%#x of gpu %d: %w", off, size, gpu, err)
	}
	region, err := devmembase.NewRegion(gpu, off, size)
	if err != nil {
		return fail(err)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.use(); err != nil {
		return fail(err)
	}
	b := &buffer{Region: region, d: d}
	if b.spare, err = b.export(); err != nil {
		return fail(err)
	}
	d.buffers[b] = struct{}{}
	return b, nil
}

// export makes a dma-buf of the buffer. Each binding needs a separate one, whose references show whether the binding's
// memory is in use.
func (b *buffer) export() (*dmabuf, error) {
	if b.d.exporter == nil {
		return nil, fmt.Errorf("%s was opened without an exporter: %w", b.d.name, syscall.ENODEV)
	}
	fd, release, err := b.d.exporter.Export(b.GPU(), b.Offset(), b.Size())
	if err != nil {
		return nil, err
	}
	m := &dmabuf{fd: fd, release: release}
	if m.refs, err = b.d.refs(fd); err != nil {
		return nil, errors.Join(err, m.close())
	}
	return m, nil
}

func (b *buffer) take() (*dmabuf, error) {
	if m := b.spare; m != nil {
		b.spare = nil
		return m, nil
	}
	return b.export()
}

// Close implements devmem.Buffer.
func (b *buffer) Close() error {
	b.d.mu.Lock()
	defer b.d.mu.Unlock()
	if b.closed {
		return nil
	}
	if err := devmembase.InUse(b, b.d.allBindings()); err != nil {
		return err
	}
	return b.close()
}

func (b *buffer) close() error {
	b.closed = true
	delete(b.d.buffers, b)
	if b.spare == nil {
		return nil
	}
	err := b.spare.close()
	b.spare = nil
	return err
}
