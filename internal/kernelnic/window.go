package kernelnic

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"reflect"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/internal/control"
	"vnic.dev/vnic/internal/gpudriver"
	"vnic.dev/vnic/internal/hugemem"
	"vnic.dev/vnic/internal/limits"
	"vnic.dev/vnic/internal/undo"
)

const hugePage = hugemem.PageSize

// Extent is a piece of a window that is contiguous in GPU memory.
type Extent struct {
	Off    uint64 `json:"off"` // in the window; all three are in bytes
	GPUOff uint64 `json:"gpu_off"`
	Size   uint64 `json:"size"`
}

// Window is GPU memory that this process owns: huge pages of a NUMA node in the order of their physical addresses, or
// one contiguous range of the memory of a GPU with the driver vnicgpu.
type Window struct {
	gpu     int
	fd      int      // a memfd, if driver is nil
	mem     []byte   // the CPU's mapping of the memfd, or of the driver's memory
	order   []uint32 // order[i] is the memfd's page that is page i of the window; nil with a driver
	extents []Extent
	driver  *gpudriver.File // nil: memory of a node
	base    uint64          // with a driver: offset of mem in the device's memory
	undo    undo.Stack

	mu    sync.Mutex
	inUse int // under mu: registrations that were not released
}

// NewWindow takes size bytes, rounded up to huge pages, from a NUMA node that is GPU gpu's memory. maps lists which
// guest-physical addresses are which offsets in the GPU's memory. ENODEV: a page is not in maps.
func NewWindow(gpu, node int, size uint64, maps []control.GPUMap) (w *Window, err error) {
	if size == 0 || size > 1<<46 {
		return nil, fmt.Errorf("window of %d bytes: %w", size, unix.EINVAL)
	}
	pages := int((size + hugePage - 1) / hugePage)
	w = &Window{gpu: gpu}
	defer func() {
		if err != nil {
			err = fmt.Errorf("window of %d MiB on node %d: %w", pages*hugePage>>20, node, errors.Join(err, w.Close()))
			w = nil
		}
	}()
	if err := w.reserve(node, pages); err != nil {
		return w, err
	}
	const flags = unix.MFD_CLOEXEC | unix.MFD_ALLOW_SEALING | unix.MFD_HUGETLB | unix.MFD_HUGE_2MB
	if w.fd, err = unix.MemfdCreate("gpu", flags); err != nil {
		return w, os.NewSyscallError("memfd_create", err)
	}
	w.undo.Add(func() error { return unix.Close(w.fd) })
	length := pages * hugePage
	if err := unix.Ftruncate(w.fd, int64(length)); err != nil {
		return w, os.NewSyscallError("ftruncate", err)
	}
	// udmabuf requires F_SEAL_SHRINK.
	if _, err := unix.FcntlInt(uintptr(w.fd), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW); err != nil {
		return w, os.NewSyscallError("seal", err)
	}
	// Without a reservation: for one, the kernel would look for free pages at the nodes of this task's policy, not at
	// the mapping's node (mm/hugetlb.c, allowed_mems_nr).
	if w.mem, err = unix.Mmap(w.fd, 0, length, unix.PROT_READ|unix.PROT_WRITE,
		unix.MAP_SHARED|unix.MAP_NORESERVE); err != nil {
		return w, os.NewSyscallError("mmap", err)
	}
	w.undo.Add(w.unmap)
	if err := bind(w.mem, node); err != nil {
		return w, err
	}
	for i := 0; i < length; i += hugePage {
		w.mem[i] = 0
	}
	addrs, err := hugemem.Physical(hugemem.Pagemap, reflect.ValueOf(w.mem).Pointer(), length, hugePage)
	if err != nil {
		return w, err
	}
	return w, w.arrange(addrs, maps)
}

// bind makes a mapping's pages come from a node when they are allocated (mbind(2)).
func bind(b []byte, node int) error {
	mask := make([]uint64, node/64+1)
	mask[node/64] = 1 << (node % 64)
	_, _, errno := unix.Syscall6(unix.SYS_MBIND, reflect.ValueOf(b).Pointer(), uintptr(len(b)), unix.MPOL_BIND,
		reflect.ValueOf(mask).Pointer(), uintptr(64*len(mask)+1), 0)
	runtime.KeepAlive(mask)
	if errno != 0 {
		return fmt.Errorf("bind memory to node %d: %w", node, errno)
	}
	return nil
}

// reserve makes a node have at least n free huge pages; Close sets the node's number of huge pages back. reserve
// retries for up to limits.DeadProcess (then ENOMEM), because the kernel may provide fewer pages than requested without
// an error, as when a signal interrupts it (mm/hugetlb.c, set_max_huge_pages).
func (w *Window) reserve(node, n int) error {
	dir := fmt.Sprintf("/sys/devices/system/node/node%d/hugepages/hugepages-%dkB/", node, hugePage>>10)
	had, err := hugemem.ReadInt(dir + "nr_hugepages")
	if err != nil {
		return err
	}
	free, err := hugemem.ReadInt(dir + "free_hugepages")
	if err != nil {
		return err
	}
	w.undo.Add(func() error { return writeInt(dir+"nr_hugepages", had) })
	if free >= n {
		return nil
	}
	want := had + n - free
	for start, tries, last := time.Now(), 0, free; time.Since(start) < limits.DeadProcess.Here(); last = free {
		if err := writeInt(dir+"nr_hugepages", want); err != nil {
			return err
		}
		if free, err = hugemem.ReadInt(dir + "free_hugepages"); err != nil || free >= n {
			return err
		}
		if free > last {
			continue
		}
		if tries++; tries >= 10 {
			time.Sleep(50 * time.Millisecond)
		}
	}
	return fmt.Errorf("%d free huge pages of %d: %w", free, n, unix.ENOMEM)
}

func writeInt(path string, n int) error { return os.WriteFile(path, []byte(strconv.Itoa(n)), 0) }

// arrange sorts the memfd's pages, at addrs, by address, and sets w.order and w.extents. ENODEV: a page is not in maps.
func (w *Window) arrange(addrs []uint64, maps []control.GPUMap) error {
	w.order = make([]uint32, len(addrs))
	for i := range w.order {
		w.order[i] = uint32(i)
	}
	slices.SortFunc(w.order, func(a, b uint32) int { return cmp.Compare(addrs[a], addrs[b]) })
	w.extents = nil
	for i, page := range w.order {
		off, ok := locate(w.gpu, addrs[page], hugePage, maps)
		if !ok {
			return fmt.Errorf("the huge page at %#x is not of GPU %d: %w", addrs[page], w.gpu, unix.ENODEV)
		}
		if k := len(w.extents); k > 0 && w.extents[k-1].GPUOff+w.extents[k-1].Size == off {
			w.extents[k-1].Size += hugePage
			continue
		}
		w.extents = append(w.extents, Extent{Off: uint64(i) * hugePage, GPUOff: off, Size: hugePage})
	}
	return nil
}

// locate returns the offset in a GPU's memory of the guest-physical memory [addr, addr+size); ok is false unless one
// map of the GPU contains all of it.
func locate(gpu int, addr, size uint64, maps []control.GPUMap) (off uint64, ok bool) {
	for _, m := range maps {
		if int(m.GPU) == gpu && addr >= m.IOVA && addr-m.IOVA < m.Size && size <= m.Size-(addr-m.IOVA) {
			return m.Off + (addr - m.IOVA), true
		}
	}
	return 0, false
}

// Size returns the window's size in bytes.
func (w *Window) Size() uint64 { return uint64(len(w.mem)) }

// use adds more, which may be negative, to the number of unreleased registrations.
func (w *Window) use(more int) {
	w.mu.Lock()
	w.inUse += more
	w.mu.Unlock()
}

// Extents returns where in the GPU's memory the window lies.
func (w *Window) Extents() []Extent { return slices.Clone(w.extents) }

// pieces returns the extents that [off, off+size) of the window has in the GPU's memory, in the window's order. EINVAL:
// the range ends past the window.
func (w *Window) pieces(off, size uint64) ([]Extent, error) {
	if off > w.Size() || size > w.Size()-off {
		return nil, fmt.Errorf("[%#x, +%#x) ends past the %#x bytes (%d MiB) that there are: %w", off, size, w.Size(),
			w.Size()>>20, unix.EINVAL)
	}
	var list []Extent
	for _, e := range w.extents {
		if off < e.Off+e.Size && size > 0 {
			skip := off - e.Off
			n := min(size, e.Size-skip)
			list = append(list, Extent{Off: off, GPUOff: e.GPUOff + skip, Size: n})
			off, size = off+n, size-n
		}
	}
	return list, nil
}

// page returns the CPU's mapping from off to the end of off's huge page, or to the window's end if that is nearer.
func (w *Window) page(off uint64) []byte {
	if w.driver != nil || off == w.Size() {
		return w.mem[off:min(uint64(len(w.mem)), off/hugePage*hugePage+hugePage)]
	}
	p := uint64(w.order[off/hugePage])
	return w.mem[p*hugePage+off%hugePage : (p+1)*hugePage]
}

// Bytes returns the CPU's mapping of the window from off on: at most size bytes, and at most to the end of off's
// huge page. EFAULT: [off, off+size) is not in the window; ENODEV: the window is not of GPU gpu.
func (w *Window) Bytes(gpu int, off, size uint64) ([]byte, error) {
	if gpu != w.gpu {
		return nil, fmt.Errorf("gpu %d: %w", gpu, unix.ENODEV)
	}
	if off > w.Size() || size > w.Size()-off {
		return nil, fmt.Errorf("[%#x, +%#x) is outside the window of %d bytes: %w", off, size, w.Size(), unix.EFAULT)
	}
	b := w.page(off)
	return b[:min(size, uint64(len(b)))], nil
}

// ReadAt copies from the window by CPU. EINVAL: a part of the range is not in the window; then ReadAt copies nothing.
func (w *Window) ReadAt(b []byte, off int64) (n int, err error) {
	if _, err := w.pieces(uint64(off), uint64(len(b))); err != nil {
		return 0, err
	}
	for n < len(b) {
		n += copy(b[n:], w.page(uint64(off)+uint64(n)))
	}
	return n, nil
}

// WriteAt copies to the window by CPU. EINVAL: a part of the range is not in the window; then WriteAt copies nothing.
func (w *Window) WriteAt(b []byte, off int64) (n int, err error) {
	if _, err := w.pieces(uint64(off), uint64(len(b))); err != nil {
		return 0, err
	}
	for n < len(b) {
		n += copy(w.page(uint64(off)+uint64(n)), b[n:])
	}
	return n, nil
}

// Close frees the memory. It fails with EBUSY while a registration of a part of it (NIC.Register) is not released.
func (w *Window) Close() error {
	w.mu.Lock()
	busy := w.inUse
	w.mu.Unlock()
	if busy > 0 {
		return fmt.Errorf("%d dma-bufs of the window are in use: %w", busy, unix.EBUSY)
	}
	return w.undo.All()
}

func (w *Window) unmap() error {
	b := w.mem
	w.mem = nil
	return unix.Munmap(b)
}
