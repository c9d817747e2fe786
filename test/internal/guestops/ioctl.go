package guestops

import (
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// ifreq is struct ifreq (include/uapi/linux/if.h) with ifr_data.
type ifreq struct {
	name [unix.IFNAMSIZ]byte
	data unsafe.Pointer
	_    [16]byte // the union is 24 bytes
}

// Ioctl calls SIOCETHTOOL for an interface: b begins with the command (4 bytes), and has room for what the kernel
// writes there.
func Ioctl(name string, b []byte) error {
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
	if _, _, e := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.SIOCETHTOOL, uintptr(unsafe.Pointer(&r))); e != 0 {
		return fmt.Errorf("ethtool command %#x of %s: %w", b[0], name, e)
	}
	return nil
}
