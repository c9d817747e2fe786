package driver

import (
	"errors"
	"fmt"
	"os"
	"reflect"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// hugePage is the size of the pages of DMA memory, in bytes: each is contiguous, and its physical
// address does not change.
const hugePage = maxAlloc

// hugeMem is the DMA memory of a guest without an IOMMU: IOVAs are physical addresses.
type hugeMem struct {
	sys   sysfs
	page  func() (b []byte, addr uint64, err error) // allocates one more page
	pages [][]byte
	addr  uint64 // of the last page
	used  int    // of the last page
}

func newHugeMem(sys sysfs) *hugeMem {
	h := &hugeMem{sys: sys, used: hugePage}
	h.page = h.newPage
	return h
}

func (h *hugeMem) alloc(n int) (memory, error) {
	n = (n + PageSize - 1) &^ (PageSize - 1)
	if n > hugePage {
		return memory{}, fmt.Errorf("DMA memory: %d bytes, more than a huge page", n)
	}
	if n > hugePage-h.used {
		b, addr, err := h.page()
		if err != nil {
			return memory{}, fmt.Errorf("DMA memory: huge page %d: %w", len(h.pages)+1, err)
		}
		h.pages, h.addr, h.used = append(h.pages, b), addr, 0
	}
	off := h.used
	h.used += n
	page := h.pages[len(h.pages)-1]
	return memory{b: page[off:h.used:h.used], addr: h.addr + uint64(off)}, nil
}

// newPage maps a huge page. If the kernel has none left, it asks for one more.
func (h *hugeMem) newPage() (b []byte, addr uint64, err error) {
	b, err = mapHuge()
	if errors.Is(err, unix.ENOMEM) {
		if err := h.reserve(); err != nil {
			return nil, 0, err
		}
		b, err = mapHuge()
	}
	if err != nil {
		return nil, 0, err
	}
	addr, err = physical(h.sys.path("proc/self/pagemap"), reflect.ValueOf(b).Pointer())
	if err == nil && addr%hugePage != 0 {
		err = fmt.Errorf("at %#x: not a whole huge page", addr)
	}
	if err != nil {
		unix.Munmap(b)
		return nil, 0, err
	}
	return b, addr, nil
}

const mapHuge2MB = 21 << 26 // MAP_HUGE_2MB: log2 of the size at MAP_HUGE_SHIFT

func mapHuge() ([]byte, error) {
	b, err := unix.Mmap(-1, 0, hugePage, unix.PROT_READ|unix.PROT_WRITE,
		unix.MAP_SHARED|unix.MAP_ANONYMOUS|unix.MAP_HUGETLB|unix.MAP_POPULATE|unix.MAP_LOCKED|mapHuge2MB)
	if err != nil {
		return nil, fmt.Errorf("mapping 2 MiB: %w", err)
	}
	return b, nil
}

// reserve asks the kernel for one more huge page.
func (h *hugeMem) reserve() error {
	path := h.sys.path("sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages")
	have, err := readInt(path)
	if err != nil {
		return fmt.Errorf("%w: the kernel has no 2 MiB pages: CONFIG_HUGETLBFS", err)
	}
	if err := writeAttr(path, strconv.Itoa(have+1)); err != nil {
		return fmt.Errorf("one more huge page: %w", err)
	}
	switch got, err := readInt(path); {
	case err != nil:
		return err
	case got <= have:
		return fmt.Errorf("%s stays at %d: the guest has no free 2 MiB any more: give it more memory, or boot with "+
			"hugepages=N: %w",
			path, have, unix.ENOMEM)
	}
	return nil
}

func readInt(path string) (int, error) {
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

// physical returns the physical address of a mapped page (Linux
// Documentation/admin-guide/mm/pagemap.rst).
func physical(pagemap string, addr uintptr) (uint64, error) {
	const (
		entryLen = 8
		present  = 1 << 63
		pfnMask  = 1<<55 - 1
	)
	f, err := os.Open(pagemap)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	page := uintptr(os.Getpagesize())
	var b [entryLen]byte
	if _, err := f.ReadAt(b[:], int64(addr/page*entryLen)); err != nil {
		return 0, fmt.Errorf("%s: %w", pagemap, err)
	}
	e := le.Uint64(b[:])
	switch {
	case e&present == 0:
		return 0, fmt.Errorf("%s: the page at %#x is not in memory", pagemap, addr)
	case e&pfnMask == 0:
		return 0, fmt.Errorf("%s: no physical addresses: run as root with CAP_SYS_ADMIN: %w", pagemap, unix.EPERM)
	}
	return e&pfnMask*uint64(page) + uint64(addr%page), nil
}

// free unmaps all pages. The device must no longer use them.
func (h *hugeMem) free() {
	for _, b := range h.pages {
		unix.Munmap(b)
	}
	h.pages, h.used = nil, hugePage
}
