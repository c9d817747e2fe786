package kerneltest

import (
	"errors"
	"io"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// kernelLog reads the records of the kernel's log that come after openKernelLog (Documentation/ABI/testing/dev-kmsg).
type kernelLog struct{ fd int }

func openKernelLog() (*kernelLog, error) {
	fd, err := unix.Open("/dev/kmsg", unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: "/dev/kmsg", Err: err}
	}
	if _, err := unix.Seek(fd, 0, io.SeekEnd); err != nil {
		return nil, errors.Join(os.NewSyscallError("lseek", err), unix.Close(fd))
	}
	return &kernelLog{fd}, nil
}

// complaints returns the records since the last call that contain one of the words below, as the kernel's faults do.
func (l *kernelLog) complaints() (lines []string) {
	var b [8192]byte // records are at most so long
	for {
		n, err := unix.Read(l.fd, b[:])
		if err == unix.EPIPE { // records were overwritten before they were read
			continue
		}
		if err != nil || n <= 0 {
			return lines
		}
		_, text, _ := strings.Cut(string(b[:n]), ";")
		for _, word := range []string{"WARNING:", "BUG:", "Oops", "refcount_t:", "page_pool_release_retry() stalled"} {
			if strings.Contains(text, word) {
				lines = append(lines, "kernel: "+strings.TrimSpace(text))
				break
			}
		}
	}
}

func (l *kernelLog) close() { _ = unix.Close(l.fd) }
