package gpufd

import (
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"syscall"

	"github.com/dustin/go-humanize/english"
	"golang.org/x/sys/unix"
)

// First is the descriptor of the first GPU's memory in a program of [Exec].
const First = 3

// Path returns the path by which a program of [Exec] opens the memory of GPU i, counted from 0.
func Path(i int) string { return fmt.Sprintf("/proc/self/fd/%d", First+i) }

// Check returns an error for mistakes in sockets, the paths for [Receive], and command that it finds without a
// connection: none, an empty or repeated path, a descriptor number for [Exec] that is open already, or a path
// /proc/self/fd/N in command without a socket for it. Call it before Receive.
func Check(sockets, command []string) error {
	switch {
	case len(sockets) == 0:
		return errors.New("no socket: vnic gpu-fd SOCKET... -- COMMAND [ARG...]")
	case len(command) == 0:
		return errors.New("no command behind --: vnic gpu-fd SOCKET... -- COMMAND [ARG...]")
	}
	seen := map[string]bool{}
	for i, s := range sockets {
		abs, err := filepath.Abs(s)
		switch {
		case err != nil:
			return err
		case s == "":
			return errors.New("a socket has no name")
		case seen[abs]:
			return fmt.Errorf("%s: twice", s)
		case inherited(First + i):
			return fmt.Errorf("descriptor %d is open already, and is to be the GPU's memory: start with %d<&-", First+i, First+i)
		}
		seen[abs] = true
	}
	for _, arg := range command[1:] {
		for _, m := range named.FindAllStringSubmatch(arg, -1) {
			fd, err := strconv.Atoi(m[1])
			if err == nil && fd >= First+len(sockets) && !inherited(fd) {
				return fmt.Errorf("the command has %s, and with %d %s the last descriptor is %d: name a socket for each GPU", m[0],
					len(sockets), english.PluralWord(len(sockets), "socket", ""), First+len(sockets)-1)
			}
		}
	}
	return nil
}

var named = regexp.MustCompile(`/proc/self/fd/([0-9]+)`)

// inherited reports whether this process was started with descriptor fd open: the descriptors that it opened itself
// have close-on-exec.
func inherited(fd int) bool {
	flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0)
	return err == nil && flags&unix.FD_CLOEXEC == 0
}

// Exec replaces this process by a program in which fds have the numbers [First] and following. It owns fds.
// It returns only if it fails, and does not close fds then; the process should end.
func Exec(program string, args []string, fds []int) error {
	runtime.LockOSThread()
	// This gives this thread its own descriptor table, so that other threads keep the descriptors that have
	// these numbers, such as the runtime's epoll. (Linux 5.9; on an older kernel they lose these descriptors for
	// a moment, and might panic.)
	_ = unix.CloseRange(math.MaxUint32, math.MaxUint32, unix.CLOSE_RANGE_UNSHARE)
	for i, fd := range fds {
		high, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, First+len(fds))
		if err != nil {
			return os.NewSyscallError("fcntl", err)
		}
		fds[i] = high
	}
	for i, fd := range fds {
		if err := unix.Dup3(fd, First+i, 0); err != nil {
			return os.NewSyscallError("dup3", err)
		}
	}
	return fmt.Errorf("%s: %w", program, syscall.Exec(program, args, os.Environ()))
}
