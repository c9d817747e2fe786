package terminal

import (
	"errors"
	"io"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// Input reads a file, which may be a terminal. Close ends a blocked Read, and leaves the file open.
type Input struct {
	f    *os.File
	wake int
	once sync.Once
	mu   sync.Mutex // held by Read, and by Close while it closes wake
}

// NewInput makes an Input for a file, which the caller still owns.
func NewInput(f *os.File) (*Input, error) {
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return nil, os.NewSyscallError("eventfd", err)
	}
	return &Input{f: f, wake: fd}, nil
}

// Read implements io.Reader. After Close, and at the end of the file, it returns io.EOF.
func (i *Input) Read(b []byte) (int, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.wake < 0 {
		return 0, io.EOF
	}
	fds := []unix.PollFd{{Fd: int32(i.f.Fd()), Events: unix.POLLIN}, {Fd: int32(i.wake), Events: unix.POLLIN}}
	for {
		if _, err := unix.Poll(fds, -1); errors.Is(err, unix.EINTR) {
			continue
		} else if err != nil {
			return 0, os.NewSyscallError("poll", err)
		}
		if fds[1].Revents != 0 {
			return 0, io.EOF
		}
		n, err := unix.Read(int(fds[0].Fd), b)
		switch {
		case errors.Is(err, unix.EINTR), errors.Is(err, unix.EAGAIN):
			continue
		case err != nil:
			return 0, os.NewSyscallError("read", err)
		case n == 0:
			return 0, io.EOF
		}
		return n, nil
	}
}

// Close makes a blocked Read, and later ones, return io.EOF. It may be called again.
func (i *Input) Close() error {
	i.once.Do(func() {
		one := [8]byte{1}
		_, _ = unix.Write(i.wake, one[:])
		i.mu.Lock()
		defer i.mu.Unlock()
		_ = unix.Close(i.wake)
		i.wake = -1
	})
	return nil
}
