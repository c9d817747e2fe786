package kernel

import (
	"fmt"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/devmem"
)

// This file makes system calls in forms that golang.org/x/sys/unix does not offer.

// From include/linux/socket.h and include/uapi/asm-generic/socket.h.
const (
	msgSockDevmem    = 0x2000000 // MSG_SOCK_DEVMEM
	scmDevmemLinear  = 78        // SO_DEVMEM_LINEAR, SCM_DEVMEM_LINEAR
	scmDevmemDmabuf  = 79        // SO_DEVMEM_DMABUF, SCM_DEVMEM_DMABUF
	soDevmemDontNeed = 80        // SO_DEVMEM_DONTNEED
)

// iovec is struct iovec with an address that is not Go's, such as an offset in a dma-buf.
type iovec struct{ base, len uint64 }

// Only 64-bit architectures are supported.
var _ [unsafe.Sizeof(unix.Iovec{})]byte = [unsafe.Sizeof(iovec{})]byte{}

// maxIovecs is UIO_MAXIOV.
const maxIovecs = 1024

func retryEINTR(f func() (uintptr, syscall.Errno)) (int, error) {
	for {
		n, e := f()
		switch e {
		case 0:
			return int(n), nil
		case unix.EINTR:
		default:
			return 0, e
		}
	}
}

func sendmsg(fd int, iov []iovec, control []byte, flags int) (int, error) {
	var m unix.Msghdr
	if len(iov) > 0 {
		m.Iov = (*unix.Iovec)(unsafe.Pointer(&iov[0]))
		m.SetIovlen(len(iov))
	}
	if len(control) > 0 {
		m.Control = &control[0]
		m.SetControllen(len(control))
	}
	return retryEINTR(func() (uintptr, syscall.Errno) {
		n, _, e := unix.Syscall(unix.SYS_SENDMSG, uintptr(fd), uintptr(unsafe.Pointer(&m)), uintptr(flags))
		return n, e
	})
}

// recvmsg receives n bytes, into b or in device memory, and nc bytes of control messages into control.
func recvmsg(fd int, b, control []byte, flags int) (n, nc int, err error) {
	var m unix.Msghdr
	var v unix.Iovec
	if len(b) > 0 {
		v.Base = &b[0]
		v.SetLen(len(b))
		m.Iov = &v
		m.SetIovlen(1)
	}
	if len(control) > 0 {
		m.Control = &control[0]
	}
	n, err = retryEINTR(func() (uintptr, syscall.Errno) {
		m.SetControllen(len(control))
		n, _, e := unix.Syscall(unix.SYS_RECVMSG, uintptr(fd), uintptr(unsafe.Pointer(&m)), uintptr(flags))
		return n, e
	})
	if err != nil {
		return 0, 0, err
	}
	return n, min(int(m.Controllen), len(control)), nil
}

// dontNeed returns tokens to the kernel, and reports how many frags were freed (net/core/sock.c:sock_devmem_dontneed).
func dontNeed(fd int, ranges []devmem.TokenRange) (int, error) {
	var b [devmem.MaxTokenRanges * tokenLen]byte
	k := encodeTokens(&b, ranges)
	return retryEINTR(func() (uintptr, syscall.Errno) {
		n, _, e := unix.Syscall6(unix.SYS_SETSOCKOPT, uintptr(fd), unix.SOL_SOCKET, soDevmemDontNeed,
			uintptr(unsafe.Pointer(&b[0])), uintptr(k), 0)
		return n, e
	})
}

// ifreq is struct ifreq (include/uapi/linux/if.h) with ifr_data.
type ifreq struct {
	name [unix.IFNAMSIZ]byte
	data unsafe.Pointer
	_    [16]byte // the rest of a union of 24 bytes
}

// ethtoolIoctl calls SIOCETHTOOL for the interface name; b begins with the command and has room for the answer.
func ethtoolIoctl(name string, b []byte) error {
	if len(b) < 4 || len(name) >= unix.IFNAMSIZ {
		return unix.EINVAL
	}
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(fd) }()
	r := ifreq{data: unsafe.Pointer(&b[0])}
	copy(r.name[:], name)
	_, err = retryEINTR(func() (uintptr, syscall.Errno) {
		n, _, e := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.SIOCETHTOOL, uintptr(unsafe.Pointer(&r)))
		return n, e
	})
	return err
}

// From include/uapi/linux/udmabuf.h and mempolicy.h.
const (
	udmabufCreate  = 0x40187542 // UDMABUF_CREATE: _IOW('u', 0x42, struct udmabuf_create)
	udmabufCloexec = 1          // UDMABUF_FLAGS_CLOEXEC
	mpolBind       = 2          // MPOL_BIND
)

// createUDMABuf makes a dma-buf of a part of a memfd; dev is a descriptor of /dev/udmabuf.
func createUDMABuf(dev, memfd int, off, size uint64) (int, error) {
	c := struct {
		memfd, flags uint32
		off, size    uint64
	}{uint32(memfd), udmabufCloexec, off, size}
	return retryEINTR(func() (uintptr, syscall.Errno) {
		n, _, e := unix.Syscall(unix.SYS_IOCTL, uintptr(dev), udmabufCreate, uintptr(unsafe.Pointer(&c)))
		return n, e
	})
}

func bindToNode(b []byte, node int) error {
	if len(b) == 0 || node < 0 || node > 63 {
		return fmt.Errorf("numa node %d: %w", node, unix.EINVAL)
	}
	mask := uint64(1) << node
	_, err := retryEINTR(func() (uintptr, syscall.Errno) {
		_, _, e := unix.Syscall6(unix.SYS_MBIND, uintptr(unsafe.Pointer(&b[0])), uintptr(len(b)), mpolBind,
			uintptr(unsafe.Pointer(&mask)), 64+1, 0) // the kernel subtracts one from maxnode
		return 0, e
	})
	return err
}
