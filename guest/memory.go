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

// Alloc registers a part of the GPU's memory that no other Alloc has given, of size bytes, a
// multiple of devmem.PageSize. It is the program's as long as the device is open. A program that
// divides the memory itself calls Register. There are Size bytes: more is ENOMEM.
func (d *Device) Alloc(size uint64) (*Memory, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if size > d.Size-d.used {
		return nil, fmt.Errorf("%d bytes of GPU memory: of %d, %d are in use: %w", size, d.Size, d.used, syscall.ENOMEM)
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
	n, err := m.within(len(b), off)
	if err != nil {
		return 0, err
	}
	m.d.mu.Lock()
	defer m.d.mu.Unlock()
	if err := m.d.memory.WriteGPU(context.Background(), m.Buffer.GPU(), m.Buffer.Offset()+uint64(off), b[:n]); err != nil {
		return 0, err
	}
	if n < len(b) {
		return n, io.ErrShortWrite
	}
	return n, nil
}

// ReadAt gets bytes from there, as io.ReaderAt: those of a frag, which starts at its Off, as long as its token is held.
func (m *Memory) ReadAt(b []byte, off int64) (int, error) {
	n, err := m.within(len(b), off)
	if err != nil {
		return 0, err
	}
	m.d.mu.Lock()
	defer m.d.mu.Unlock()
	at := []devmem.Range{{Off: m.Buffer.Offset() + uint64(off), Len: uint64(n)}}
	if err := m.d.memory.ReadGPU(context.Background(), m.Buffer.GPU(), at, b[:n]); err != nil {
		return 0, err
	}
	if n < len(b) {
		return n, io.EOF
	}
	return n, nil
}

// within is how many of n bytes at off are in the memory.
func (m *Memory) within(n int, off int64) (int, error) {
	size := m.Buffer.Size()
	if off < 0 || uint64(off) > size {
		return 0, fmt.Errorf("offset %d in %d bytes of GPU memory: %w", off, size, syscall.EINVAL)
	}
	return int(min(uint64(n), size-uint64(off))), nil
}
