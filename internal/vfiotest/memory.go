package vfiotest

import (
	"fmt"

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/vfiouser"
)

// Memory is a memfd that is mapped into this process.
type Memory struct {
	fd  int
	mem []byte
}

// NewMemory allocates a Memory of size bytes.
func NewMemory(size uint64) (*Memory, error) {
	fd, err := unix.MemfdCreate("vfiotest", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("memfd: %w", err)
	}
	if err := unix.Ftruncate(fd, int64(size)); err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("memfd of %#x bytes: %w", size, err)
	}
	mem, err := unix.Mmap(fd, 0, int(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("memfd of %#x bytes: mmap: %w", size, err)
	}
	return &Memory{fd, mem}, nil
}

// Bytes returns the memory, which is valid until Close. A device may access it at the same time.
func (m *Memory) Bytes() []byte { return m.mem }

// FD returns the memfd's descriptor, which the Memory still owns.
func (m *Memory) FD() int { return m.fd }

// Close unmaps the memory and closes the memfd. A server's mapping stays.
func (m *Memory) Close() {
	if m.mem != nil {
		_ = unix.Munmap(m.mem)
		_ = unix.Close(m.fd)
		m.mem = nil
	}
}

// Map asks the server to map all of m at iova, for reads and writes by the device.
func (c *Client) Map(iova uint64, m *Memory) error {
	return c.MapRange(iova, uint64(len(m.mem)), m.fd, 0, true)
}

// MapRange asks the server to map [off, off+size) of fd at iova, for reads by the device and, if write is true, for
// writes. If fd is -1, the device cannot access the range.
func (c *Client) MapRange(iova, size uint64, fd int, off uint64, write bool) error {
	flags := uint32(1)
	if write {
		flags |= 2
	}
	var fds []int
	if fd >= 0 {
		fds = []int{fd}
	}
	_, err := c.Request(vfiouser.CmdDMAMap, DMAMap(flags, off, iova, size), 0, fds...)
	return err
}

// DMAMap returns the body of a DMA_MAP request.
func DMAMap(flags uint32, off, iova, size uint64) []byte {
	b := le.AppendUint32(nil, 32)
	b = le.AppendUint32(b, flags)
	b = le.AppendUint64(b, off)
	b = le.AppendUint64(b, iova)
	return le.AppendUint64(b, size)
}

// DMAUnmap returns the body of a DMA_UNMAP request.
func DMAUnmap(flags uint32, iova, size uint64) []byte {
	b := le.AppendUint32(nil, 24)
	b = le.AppendUint32(b, flags)
	b = le.AppendUint64(b, iova)
	return le.AppendUint64(b, size)
}

// Unmap removes the mappings inside a range of IOVAs. After success the device no longer accesses the range.
func (c *Client) Unmap(iova, size uint64) error { return c.unmap(0, iova, size) }

// UnmapAll removes all mappings.
func (c *Client) UnmapAll() error { return c.unmap(2, 0, 0) }

func (c *Client) unmap(flags uint32, iova, size uint64) error {
	b := DMAUnmap(flags, iova, size)
	r, err := c.Request(vfiouser.CmdDMAUnmap, b, len(b))
	if err != nil {
		return err
	}
	if string(r) != string(b) {
		return fmt.Errorf("DMA_UNMAP: reply % x, not the request's entry % x", r, b)
	}
	return nil
}
