package boot

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/internal/agent"
	"vnic.dev/vnic/internal/limits"
)

// openResults opens the results channel: the virtio port if c.Port is set and the port works, else the serial line. It
// opens a blocking file, which this process's Go runtime does not poll: only the agent, a process that inherits the
// descriptor, may poll it. With two pollers, messages can stay unseen: a poll removes the message from the port's
// queue, and the message's interrupt then finds nothing and wakes nobody (Linux drivers/char/virtio_console.c,
// port_has_data, and drivers/virtio/virtio_ring.c, vring_interrupt).
func openResults(c *agent.Config) (*os.File, error) {
	if c.Port {
		f, err := openPort("/", agent.PortName)
		if err == nil {
			return f, nil
		}
		fmt.Fprintln(os.Stderr, "vnic-guest: init: results over the serial line, which is slow:", err)
	}
	return openChannel(c.Channel)
}

// openPort waits up to limits.ResultsPort, in all, for the virtio port of this name and for the host to open its end
// (Linux drivers/char/virtio_console.c). Without the kernel's driver it fails at once.
func openPort(root, name string) (*os.File, error) {
	if _, err := os.Stat(filepath.Join(root, "sys/bus/virtio/drivers/virtio_console")); err != nil {
		return nil, errors.New("this kernel has no VIRTIO_CONSOLE")
	}
	// sysfs sends no inotify event for a new port
	for end := time.Now().Add(limits.ResultsPort.Here()); ; time.Sleep(10 * time.Millisecond) {
		names, _ := filepath.Glob(filepath.Join(root, "sys/class/virtio-ports/*/name"))
		for _, n := range names {
			if b, err := os.ReadFile(n); err == nil && strings.TrimSpace(string(b)) == name {
				return connected(filepath.Join(root, "dev", filepath.Base(filepath.Dir(n))), end)
			}
		}
		if time.Now().After(end) {
			return nil, fmt.Errorf("no virtio port %s", name)
		}
	}
}

// connected opens a port, and waits, at most until end, until the host has opened its end: before that, a read returns
// the end of the file. The file that it returns is blocking.
func connected(path string, end time.Time) (*os.File, error) {
	fd, err := unix.Open(path, unix.O_RDWR|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	for {
		fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLOUT}}
		n, err := unix.Poll(fds, max(0, int(time.Until(end).Milliseconds())))
		switch {
		case errors.Is(err, unix.EINTR):
		case err == nil && n > 0 && fds[0].Revents&unix.POLLOUT != 0:
			return blocking(fd, path)
		case err != nil || !time.Now().Before(end):
			_ = unix.Close(fd)
			return nil, fmt.Errorf("%s: not connected: %w", path, errors.Join(err, os.ErrDeadlineExceeded))
		default:
			time.Sleep(time.Millisecond)
		}
	}
}

func openChannel(path string) (_ *os.File, err error) {
	path = cmp.Or(path, agent.DefaultChannel)
	defer func() {
		if err != nil {
			err = fmt.Errorf("results channel %s: %w", path, err)
		}
	}()
	fd, err := unix.Open(path, unix.O_RDWR|unix.O_NOCTTY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	t, err := unix.IoctlGetTermios(fd, unix.TCGETS)
	if err == nil {
		// The flags are set as by cfmakeraw(3); CLOCAL and CREAD are set besides.
		t.Iflag &^= unix.IGNBRK | unix.BRKINT | unix.PARMRK | unix.ISTRIP | unix.INLCR | unix.IGNCR | unix.ICRNL | unix.IXON
		t.Oflag &^= unix.OPOST
		t.Lflag &^= unix.ECHO | unix.ECHONL | unix.ICANON | unix.ISIG | unix.IEXTEN
		t.Cflag &^= unix.CSIZE | unix.PARENB
		t.Cflag |= unix.CS8 | unix.CLOCAL | unix.CREAD
		t.Cc[unix.VMIN], t.Cc[unix.VTIME] = 1, 0
		err = unix.IoctlSetTermios(fd, unix.TCSETS, t)
	}
	if err != nil {
		return nil, errors.Join(err, unix.Close(fd))
	}
	return blocking(fd, path)
}

func blocking(fd int, path string) (*os.File, error) {
	if err := unix.SetNonblock(fd, false); err != nil {
		return nil, errors.Join(&os.PathError{Op: "clear O_NONBLOCK", Path: path, Err: err}, unix.Close(fd))
	}
	return os.NewFile(uintptr(fd), path), nil
}
