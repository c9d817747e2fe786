package kernelnic

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"reflect"
	"runtime"

	"golang.org/x/sys/unix"
)

// The device of udmabuf, and constants of Linux's include/uapi/linux/udmabuf.h.
const (
	udmabufPath       = "/dev/udmabuf"
	udmabufCreateList = 0x40087543 // UDMABUF_CREATE_LIST: _IOW('u', 0x43, struct udmabuf_create_list)
	udmabufCloexec    = 1          // UDMABUF_FLAGS_CLOEXEC
	udmabufHead       = 8          // bytes of struct udmabuf_create_list: flags u32, count u32
	udmabufItem       = 24         // bytes of struct udmabuf_create_item: memfd u32, pad u32, offset u64, size u64
)

// KernelArgs on the kernel's command line let udmabuf make dma-bufs of up to 1 TiB, from up to 2^20 items.
const KernelArgs = "udmabuf.size_limit_mb=1048576 udmabuf.list_limit=1048576"

// item is a contiguous range of the window's memfd, in bytes.
type item struct{ off, size uint64 }

// items returns the ranges of the memfd that form [off, off+size) of a node's window, in the window's order.
func (w *Window) items(off, size uint64) []item {
	var list []item
	for size > 0 {
		off0 := uint64(w.order[off/hugePage])*hugePage + off%hugePage
		n := min(size, hugePage-off%hugePage)
		if k := len(list); k > 0 && list[k-1].off+list[k-1].size == off0 {
			list[k-1].size += n
		} else {
			list = append(list, item{off0, n})
		}
		off, size = off+n, size-n
	}
	return list
}

// DMABuf makes a dma-buf of [off, off+size) of the window; off and size must be multiples of 4 KiB. The caller closes
// fd. EINVAL: the range is not in the window.
func (w *Window) DMABuf(off, size uint64) (fd int, err error) {
	if _, err := w.pieces(off, size); err != nil {
		return -1, err
	}
	if w.driver != nil {
		return w.driver.Export(w.base+off, size)
	}
	f, err := os.Open(udmabufPath)
	if err != nil {
		return -1, fmt.Errorf("%w: the kernel has no CONFIG_UDMABUF, or the module is not loaded", err)
	}
	defer f.Close()
	ne := binary.NativeEndian
	list := w.items(off, size)
	arg := make([]byte, 0, udmabufHead+len(list)*udmabufItem)
	arg = ne.AppendUint32(arg, udmabufCloexec)
	arg = ne.AppendUint32(arg, uint32(len(list)))
	for _, i := range list {
		arg = ne.AppendUint32(arg, uint32(w.fd))
		arg = ne.AppendUint32(arg, 0)
		arg = ne.AppendUint64(arg, i.off)
		arg = ne.AppendUint64(arg, i.size)
	}
	n, _, errno := unix.Syscall(unix.SYS_IOCTL, f.Fd(), udmabufCreateList, reflect.ValueOf(arg).Pointer())
	runtime.KeepAlive(arg)
	if errno != 0 {
		return -1, fmt.Errorf("dma-buf of [%#x, +%#x), %d pieces: %w", off, size, len(list), errno)
	}
	return int(n), nil
}

// Export makes a dma-buf of [off, off+size) of the window, and registers the range with the NIC as device memory, until
// release is called. The caller closes fd. ENODEV: the window is not of GPU gpu, or there is none.
func (n *NIC) Export(gpu int, off, size uint64) (fd int, release func() error, err error) {
	_, release, err = n.Register(gpu, off, size)
	if err != nil {
		return -1, nil, err
	}
	if fd, err = n.window.DMABuf(off, size); err != nil {
		return -1, nil, errors.Join(err, release())
	}
	return fd, release, nil
}
