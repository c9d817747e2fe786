// Package inuse lets only one process at a time use a device, among the processes that claim it.
//
// A program that claims a device listens at an abstract Unix socket named after the device (unix(7)): the
// kernel frees the name when the process ends, and reports the process's id to a process that connects
// (SO_PEERCRED). Names belong to a network namespace: processes in two of them may use one device, and also
// several processes on a kernel without Unix sockets.
package inuse

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/internal/sockfile"
)

// nameLen is the length of sockaddr_un.sun_path, less its leading zero byte, and less one byte that
// unix.SockaddrUnix reserves.
const nameLen = 106

// Claim reserves a device for this process until the result is closed or the process ends. If this or another
// process has already claimed it, the error is EBUSY.
func Claim(device string) (io.Closer, error) {
	name := "vnic-device:" + device
	if len(name) > nameLen {
		name = fmt.Sprintf("vnic-device:%x", sha256.Sum256([]byte(device)))
	}
	addr := &unix.SockaddrUnix{Name: "@" + name}
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	switch {
	case errors.Is(err, unix.EAFNOSUPPORT):
		return closer(func() error { return nil }), nil
	case err != nil:
		return nil, fmt.Errorf("%s: %w", device, os.NewSyscallError("socket", err))
	}
	if err = unix.Bind(fd, addr); err == nil {
		err = unix.Listen(fd, 16)
	}
	if err == nil {
		return closer(func() error { return os.NewSyscallError("close", unix.Close(fd)) }), nil
	}
	_ = unix.Close(fd)
	if !errors.Is(err, unix.EADDRINUSE) {
		return nil, fmt.Errorf("%s: %w", device, os.NewSyscallError("bind", err))
	}
	return nil, fmt.Errorf("in use: %s has it, and a device is one program's: end it, or wait for its end: %w",
		holder(addr.Name), unix.EBUSY)
}

type closer func() error

func (c closer) Close() error { return c() }

// holder describes the process that listens at an abstract address.
func holder(name string) string {
	pid, err := sockfile.Listening(name)
	if err != nil || pid <= 0 { // for example, the listener's backlog is full
		return "another process"
	}
	who := fmt.Sprintf("process %d", pid)
	if pid == os.Getpid() {
		who = "this " + who
	}
	if name := program(pid); name != "" {
		who += " (" + name + ")"
	}
	return who
}

// program returns the file name in a process's first argument, or "".
func program(pid int) string {
	b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	first, _, _ := bytes.Cut(b, []byte{0})
	if len(first) == 0 {
		return ""
	}
	return filepath.Base(string(first))
}

// shared has the devices that this process has claimed by Share.
var shared = struct {
	mu   sync.Mutex
	uses map[string]*use
}{uses: map[string]*use{}}

type use struct {
	io.Closer
	n int
}

// Share is Claim, but succeeds also if this process has the device by Share; the claim ends when the results of all
// these calls are closed.
func Share(device string) (io.Closer, error) {
	shared.mu.Lock()
	defer shared.mu.Unlock()
	u := shared.uses[device]
	if u == nil {
		c, err := Claim(device)
		if err != nil {
			return nil, err
		}
		u = &use{Closer: c}
		shared.uses[device] = u
	}
	u.n++
	end := sync.OnceValue(func() error {
		shared.mu.Lock()
		defer shared.mu.Unlock()
		if u.n--; u.n > 0 {
			return nil
		}
		delete(shared.uses, device)
		return u.Close()
	})
	return closer(end), nil
}
