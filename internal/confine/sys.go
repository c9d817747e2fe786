package confine

import (
	"fmt"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

func setFilterOnAll(filter []unix.SockFilter) error {
	thread, err := setFilter(filter, unix.SECCOMP_FILTER_FLAG_TSYNC)
	if err == nil && thread != 0 { // seccomp(2): the ID of a thread that has other filters
		err = fmt.Errorf("couldn't synchronize filter to TID %d", thread)
	}
	return err
}

func setFilter(filter []unix.SockFilter, flags uintptr) (fd int, err error) {
	prog := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	runtime.LockOSThread() // no_new_privs is per thread, and TSYNC copies it to the others
	defer runtime.UnlockOSThread()
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return -1, err
	}
	n, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, flags, uintptr(unsafe.Pointer(&prog)))
	runtime.KeepAlive(filter)
	if errno != 0 {
		return -1, errno
	}
	return int(n), nil
}

// available reports whether the kernel supports an action (SECCOMP_GET_ACTION_AVAIL reads 32 bits).
func available(action uint32) bool {
	_, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_GET_ACTION_AVAIL, 0, uintptr(unsafe.Pointer(&action)))
	return errno == 0
}

// Sizes of the kernel's structs (linux/seccomp.h), parts of the ioctls' numbers.
const (
	notifLen = 80 // struct seccomp_notif
	respLen  = 24 // struct seccomp_notif_resp
)

func receive(fd int, b *[notifLen]byte) error {
	return ioctl(fd, unix.SECCOMP_IOCTL_NOTIF_RECV, unsafe.Pointer(b))
}

func answer(fd int, b *[respLen]byte) error {
	return ioctl(fd, unix.SECCOMP_IOCTL_NOTIF_SEND, unsafe.Pointer(b))
}

func ioctl(fd int, request uintptr, p unsafe.Pointer) error {
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), request, uintptr(p)); errno != 0 {
		return errno
	}
	return nil
}
