// Package hugemem allocates memory for devices of a guest without an IOMMU: huge pages, which the kernel does
// not swap out (Linux Documentation/admin-guide/mm/hugetlbpage.rst), with their physical addresses.
package hugemem

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"reflect"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// PageSize is the size of a huge page, in bytes.
const PageSize = 2 << 20

// Pagemap is the file with the physical addresses of this process's pages
// (Documentation/admin-guide/mm/pagemap.rst).
const Pagemap = "/proc/self/pagemap"

// Memory allocates pieces of huge pages. Its methods may be called from several goroutines.
type Memory struct {
	// NewPage maps a huge page, and returns its physical address; nil: the function NewPage with Pagemap. Set it
	// before the first AllocDMA.
	NewPage func() (b []byte, addr uint64, err error)

	mu    sync.Mutex
	pages []page // under mu
	used  int    // under mu: bytes used of the last page
}

type page struct {
	b    []byte
	addr uint64
}

// AllocDMA allocates physically contiguous memory of at least size bytes, rounded up to pages of os.Getpagesize, and
// returns it with its physical address; EINVAL: more than PageSize, or none. Free releases it.
func (m *Memory) AllocDMA(size int) (b []byte, addr uint64, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	small := os.Getpagesize()
	size = (size + small - 1) &^ (small - 1)
	if size <= 0 || size > PageSize {
		return nil, 0, fmt.Errorf("DMA memory of %d bytes: at most a huge page: %w", size, unix.EINVAL)
	}
	if len(m.pages) == 0 || size > PageSize-m.used {
		grow := m.NewPage
		if grow == nil {
			grow = func() ([]byte, uint64, error) { return NewPage(Pagemap) }
		}
		b, addr, err := grow()
		if err != nil {
			return nil, 0, fmt.Errorf("DMA memory: huge page %d: %w", len(m.pages)+1, err)
		}
		m.pages, m.used = append(m.pages, page{b, addr}), 0
	}
	last, off := m.pages[len(m.pages)-1], m.used
	m.used += size
	return last.b[off:m.used:m.used], last.addr + uint64(off), nil
}

// Slice returns the memory at a physical address; EFAULT: the range is not within one huge page of m.
func (m *Memory) Slice(addr, size uint64) ([]byte, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, p := range m.pages {
		if off := addr - p.addr; addr >= p.addr && off < PageSize && size <= PageSize-off {
			return p.b[off : off+size], nil
		}
	}
	return nil, fmt.Errorf("[%#x, +%#x) is not DMA memory: %w", addr, size, unix.EFAULT)
}

// Free unmaps all pages, which neither devices nor this process may use any more.
func (m *Memory) Free() (err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, p := range m.pages {
		err = errors.Join(err, unix.Munmap(p.b))
	}
	m.pages = nil
	return err
}

const mapHuge2MB = 21 << 26 // MAP_HUGE_2MB: log2 of the size at MAP_HUGE_SHIFT

// NewPage maps a huge page, and finds its physical address in a pagemap file. ENOMEM: the kernel has none left.
func NewPage(pagemap string) (b []byte, addr uint64, err error) {
	b, err = unix.Mmap(-1, 0, PageSize, unix.PROT_READ|unix.PROT_WRITE,
		unix.MAP_SHARED|unix.MAP_ANONYMOUS|unix.MAP_HUGETLB|unix.MAP_POPULATE|unix.MAP_LOCKED|mapHuge2MB)
	if err != nil {
		return nil, 0, fmt.Errorf("mapping 2 MiB: %w", err)
	}
	addrs, err := Physical(pagemap, reflect.ValueOf(b).Pointer(), PageSize, PageSize)
	if err == nil && addrs[0]%PageSize != 0 {
		err = fmt.Errorf("at %#x: not a whole huge page", addrs[0])
	}
	if err != nil {
		return nil, 0, errors.Join(err, unix.Munmap(b))
	}
	return b, addrs[0], nil
}

// Physical returns the physical addresses at every step bytes of the size bytes that are mapped at start. The
// pages must be in memory, else it fails, and must not move. EPERM: the pagemap hides addresses (no CAP_SYS_ADMIN).
func Physical(pagemap string, start uintptr, size, step int) (addrs []uint64, err error) {
	const (
		entryLen = 8
		present  = 1 << 63
		pfnMask  = 1<<55 - 1
	)
	f, err := os.Open(pagemap)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	small := uintptr(os.Getpagesize())
	for addr := start; addr < start+uintptr(size); addr += uintptr(step) {
		var raw [entryLen]byte
		if _, err := f.ReadAt(raw[:], int64(addr/small*entryLen)); err != nil {
			return nil, fmt.Errorf("%s: %w", pagemap, err)
		}
		e := binary.NativeEndian.Uint64(raw[:])
		switch {
		case e&present == 0:
			return nil, fmt.Errorf("%s: the page at %#x is not in memory", pagemap, addr)
		case e&pfnMask == 0:
			return nil, fmt.Errorf("%s: no physical addresses: run as root with CAP_SYS_ADMIN: %w", pagemap, unix.EPERM)
		}
		addrs = append(addrs, e&pfnMask*uint64(small)+uint64(addr%small))
	}
	return addrs, nil
}

// ReadInt reads a decimal number from a file that has nothing else.
func ReadInt(path string) (int, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	n, err := strconv.Atoi(strings.TrimSpace(string(b)))
	if err != nil {
		return 0, fmt.Errorf("%s: %w", path, err)
	}
	return n, nil
}
