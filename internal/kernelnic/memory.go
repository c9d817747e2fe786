package kernelnic

import (
	"errors"
	"fmt"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

const mapHuge2MB = 21 << 26 // MAP_HUGE_2MB: log2 of the size at MAP_HUGE_SHIFT

// Memory is guest RAM that engines access at its physical addresses: huge pages, which do not move.
type Memory struct {
	mu    sync.Mutex
	pages [][]byte // under mu
	addrs []uint64 // under mu: of pages
	used  int      // under mu: bytes used of the last page
}

// AllocDMA allocates memory that remains until Close (transfer.Memory).
func (m *Memory) AllocDMA(size int) (b []byte, iova uint64, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	small := os.Getpagesize()
	size = (size + small - 1) &^ (small - 1)
	if size <= 0 || size > hugePage {
		return nil, 0, fmt.Errorf("DMA memory of %d bytes: at most a huge page: %w", size, unix.EINVAL)
	}
	if len(m.pages) == 0 || size > hugePage-m.used {
		if err := m.grow(); err != nil {
			return nil, 0, fmt.Errorf("DMA memory: huge page %d: %w", len(m.pages)+1, err)
		}
	}
	last, off := len(m.pages)-1, m.used
	m.used += size
	return m.pages[last][off:m.used:m.used], m.addrs[last] + uint64(off), nil
}

func (m *Memory) grow() error {
	b, err := unix.Mmap(-1, 0, hugePage, unix.PROT_READ|unix.PROT_WRITE,
		unix.MAP_SHARED|unix.MAP_ANONYMOUS|unix.MAP_HUGETLB|unix.MAP_POPULATE|unix.MAP_LOCKED|mapHuge2MB)
	if err != nil {
		return err
	}
	addrs, err := physical(b, hugePage)
	if err != nil {
		return errors.Join(err, unix.Munmap(b))
	}
	m.pages, m.addrs, m.used = append(m.pages, b), append(m.addrs, addrs[0]), 0
	return nil
}

// slice returns allocated memory by its address.
func (m *Memory) slice(iova, size uint64) ([]byte, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for i, a := range m.addrs {
		if off := iova - a; iova >= a && off < hugePage && size <= hugePage-off {
			return m.pages[i][off : off+size], nil
		}
	}
	return nil, fmt.Errorf("[%#x, +%#x) is not DMA memory: %w", iova, size, unix.EFAULT)
}

// Close frees all memory.
func (m *Memory) Close() (err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, b := range m.pages {
		err = errors.Join(err, unix.Munmap(b))
	}
	m.pages, m.addrs = nil, nil
	return err
}
