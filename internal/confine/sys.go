package confine

import (
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/abi/linux"
	"gvisor.dev/gvisor/pkg/bpf"
)

// Flags of seccomp(2) that gVisor's package has no names for.
const (
	flagTSyncESRCH   = 1 << 4 // SECCOMP_FILTER_FLAG_TSYNC_ESRCH, Linux 5.7
	flagWaitKillable = 1 << 5 // SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV, Linux 5.19
)

// setFilter installs a filter, and gives its listener. (gVisor's SetFilter cannot have one.)
func setFilter(p []bpf.Instruction, flags uintptr) (fd int, err error) {
	filter := make([]unix.SockFilter, len(p))
	for i, in := range p {
		filter[i] = unix.SockFilter{Code: in.OpCode, Jt: in.JumpIfTrue, Jf: in.JumpIfFalse, K: in.K}
	}
	prog := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	runtime.LockOSThread() // no_new_privs is this thread's, and TSYNC gives it to the others
	defer runtime.UnlockOSThread()
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return -1, err
	}
	// The kernel reads prog, and through it Len instructions of filter: all that there are.
	n, _, errno := unix.Syscall(unix.SYS_SECCOMP, linux.SECCOMP_SET_MODE_FILTER, flags, uintptr(unsafe.Pointer(&prog)))
	runtime.KeepAlive(filter)
	if errno != 0 {
		return -1, errno
	}
	return int(n), nil
}

// What a filter can do with a call (SECCOMP_RET_ERRNO, SECCOMP_RET_USER_NOTIF).
const (
	actionErrno  = uint32(linux.SECCOMP_RET_ERRNO)
	actionNotify = uint32(linux.SECCOMP_RET_USER_NOTIF)
)

// available says whether the kernel knows an action (SECCOMP_GET_ACTION_AVAIL reads 32 bits).
func available(action uint32) bool {
	_, _, errno := unix.Syscall(unix.SYS_SECCOMP, linux.SECCOMP_GET_ACTION_AVAIL, 0, uintptr(unsafe.Pointer(&action)))
	return errno == 0
}

// Sizes of the kernel's structs (linux/seccomp.h), which are in the numbers of its ioctls.
const (
	notifLen = 80 // struct seccomp_notif
	respLen  = 24 // struct seccomp_notif_resp
)

// receive waits for a refused call.
func receive(fd int, b *[notifLen]byte) error {
	return ioctl(fd, linux.SECCOMP_IOCTL_NOTIF_RECV, unsafe.Pointer(b))
}

// answer says what becomes of it.
func answer(fd int, b *[respLen]byte) error {
	return ioctl(fd, linux.SECCOMP_IOCTL_NOTIF_SEND, unsafe.Pointer(b))
}

// ioctl hands the kernel an array of the size that is in the request (_IOC_SIZE).
func ioctl(fd int, request uintptr, p unsafe.Pointer) error {
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), request, uintptr(p)); errno != 0 {
		return errno
	}
	return nil
}
