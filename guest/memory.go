package guest

import (
	"context"
	"fmt"
	"io"
	"syscall"

	"vnic.dev/vnic/devmem"
)

// Memory is a part of the GPU's memory, registered with the device: its Buffer is what BindRX and
// BindTX take, and offsets of frags and ranges are offsets in it.
type Memory struct {
	Buffer devmem.Buffer
	d      *Device
}

// Engines are what GPU memory is worked on with where no CPU is to see it, and looked at a few bytes at a time: with
// --nic virtio the engines of vnic's GPU, with --nic gve this process, which has the memory mapped.
func (d *Device) Engines() devmem.Memory { return d.memory }

// Alloc registers a part of the GPU's memory that no other Alloc has given, of size bytes, a
// multiple of devmem.PageSize. It is the program's as long as the device is open. A program that
// divides the memory itself calls Register. There are Size bytes: more is ENOMEM.
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

// WriteAt puts bytes there, as io.WriterAt. It is for a program's own few bytes, as they would come
// from disk: what the device sends does not pass here. What lies there must not be under way
// (SendDevmem).
func (m *Memory) WriteAt(b []byte, off int64) (int, error) {
	return m.access(b, off, io.ErrShortWrite, func(b []byte, at uint64) error {
		return m.d.memory.Put(context.Background(), m.Buffer, at, b)
	})
}

// ReadAt gets bytes from there, as io.ReaderAt: those of a frag, which starts at its Off, as long as its token is held.
func (m *Memory) ReadAt(b []byte, off int64) (int, error) {
	return m.access(b, off, io.EOF, func(b []byte, at uint64) error {
		return m.d.memory.Get(context.Background(), b, m.Buffer, at)
	})
}

// access calls f with as much of b as is in the memory at off. If it is not all of b,
// the error is short.
func (m *Memory) access(b []byte, off int64, short error, f func(b []byte, at uint64) error) (int, error) {
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
