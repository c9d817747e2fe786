// Package inuse sees to it that a device has one program, and tells a second one who has it.
//
// A program that has a device listens at an abstract Unix socket of the device's name (unix(7)): the kernel takes the
// name back when the process ends, in whatever way, and tells who it is (SO_PEERCRED). Names are of a network
// namespace, as interfaces are. A kernel without Unix sockets lets everybody have the device.
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
)

// nameLen is how long an abstract name can be: sockaddr_un.sun_path, less its leading zero byte, and one that
// unix.SockaddrUnix keeps for itself.
const nameLen = 106

// Claim takes a device for this process until the claim is closed. If a process has it, this one or another, the error
// is EBUSY and names that.
func Claim(device string) (io.Closer, error) {
	name := "vnic-device:" + device
	if len(name) > nameLen {
		name = fmt.Sprintf("vnic-device:%x", sha256.Sum256([]byte(device)))
	}
	addr := &unix.SockaddrUnix{Name: "@" + name}
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return claim(-1), nil //nolint:nilerr // the kernel has no such sockets
	}
	err = unix.Bind(fd, addr)
	if err == nil {
		err = unix.Listen(fd, 16)
	}
	if err == nil {
		return claim(fd), nil
	}
	_ = unix.Close(fd)
	if !errors.Is(err, unix.EADDRINUSE) {
		return nil, fmt.Errorf("%s: %w", device, os.NewSyscallError("bind", err))
	}
	return nil, fmt.Errorf("in use: %s has it, and a device is one program's: end it, or wait for its end: %w",
		holder(addr), unix.EBUSY)
}

// holder asks who listens.
func holder(addr unix.Sockaddr) string {
	const unknown = "another process"
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return unknown
	}
	defer func() { _ = unix.Close(fd) }()
	if err := unix.Connect(fd, addr); err != nil { // so many have asked that its backlog is full, or it ends just now
		return unknown
	}
	cred, err := unix.GetsockoptUcred(fd, unix.SOL_SOCKET, unix.SO_PEERCRED)
	if err != nil || cred.Pid <= 0 {
		return unknown
	}
	who := fmt.Sprintf("process %d", cred.Pid)
	if int(cred.Pid) == os.Getpid() {
		who = "this " + who
	}
	if name := program(int(cred.Pid)); name != "" {
		who += " (" + name + ")"
	}
	return who
}

// program is the name of a process's program, as it was started.
func program(pid int) string {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	if err != nil {
		return ""
	}
	first, _, _ := bytes.Cut(b, []byte{0})
	if len(first) == 0 {
		return ""
	}
	return filepath.Base(string(first))
}

// shared are the claims of Share, by device.
var shared = struct {
	mu   sync.Mutex
	uses map[string]*use
}{uses: map[string]*use{}}

// use is a device that this process has, and how often.
type use struct {
	io.Closer
	n int
}

// Share is Claim, but this process may have the device several times: others may have it when all claims are closed.
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
	return &share{device: device}, nil
}

// share is one claim of several.
type share struct {
	device string
	once   sync.Once
}

func (s *share) Close() (err error) {
	s.once.Do(func() {
		shared.mu.Lock()
		defer shared.mu.Unlock()
		u := shared.uses[s.device]
		if u.n--; u.n == 0 {
			delete(shared.uses, s.device)
			err = u.Close()
		}
	})
	return err
}

// claim is the socket.
type claim int

func (c claim) Close() error {
	if c < 0 {
		return nil
	}
	return os.NewSyscallError("close", unix.Close(int(c)))
}
