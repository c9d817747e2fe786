package guest

import (
	"context"
	"fmt"
	"io"
	"syscall"

	"vnic.dev/vnic/devmem"
)

// Memory is a part of the GPU's memory, registered with the device as Buffer. The offsets of device memory's frags
// (RecvDevmem) and of ranges (SendDevmem) are offsets in Memory.
type Memory struct {
	Buffer devmem.Buffer
	d      *Device
}

// Engines returns the devmem.Memory that copies, reads, writes and adds up data in the GPU's memory: with --nic virtio
// by the engines of vnic's GPU, with --nic gve by this process.
func (d *Device) Engines() devmem.Memory { return d.memory }

// Alloc registers size bytes of the GPU's memory, a multiple of devmem.PageSize (else EINVAL), that no earlier Alloc of
// this Device has returned. Nothing frees them for a later Alloc. If all Allocs together need more than Size bytes, the
// error is ENOMEM.
func (d *Device) Alloc(size uint64) (*Memory, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if size > d.Size-d.used {
		return nil, fmt.Errorf("%d bytes of GPU memory (%d MiB): the program has %d (%d MiB), of which %d are in use: %w",
			size, size>>20, d.Size, d.Size>>20, d.used, syscall.ENOMEM)
	}
	b, err := d.Register(d.GPU, d.used, size)
	if err != nil {
		return nil, err
	}
	d.used += size
	return &Memory{b, d}, nil
}

// WriteAt implements io.WriterAt: it copies b to the GPU's memory. No bytes that it overwrites may be in flight
// (SendDevmem).
func (m *Memory) WriteAt(b []byte, off int64) (int, error) {
	return m.access(b, off, io.ErrShortWrite, func(b []byte, pos uint64) error {
		return m.d.memory.Put(context.Background(), m.Buffer, pos, b)
	})
}

// ReadAt implements io.ReaderAt. A received frag must be read while its token is held.
func (m *Memory) ReadAt(b []byte, off int64) (int, error) {
	return m.access(b, off, io.EOF, func(b []byte, pos uint64) error {
		return m.d.memory.Get(context.Background(), b, m.Buffer, pos)
	})
}

// access calls f with the part of b that fits into the memory from off on. If that is not all of b and f succeeds, the
// error is short.
func (m *Memory) access(b []byte, off int64, short error, f func(b []byte, pos uint64) error) (int, error) {
	size := m.Buffer.Size()
	if off < 0 || uint64(off) > size {
		return 0, fmt.Errorf("offset %d in %d bytes of GPU memory: %w", off, size, syscall.EINVAL)
	}
	n := int(min(uint64(len(b)), size-uint64(off)))
	if err := f(b[:n], uint64(off)); err != nil {
		return 0, err
	}
	if n < len(b) {
		return n, short
	}
	return n, nil
}
