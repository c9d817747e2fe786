package driver

import (
	"bytes"
	"errors"
	"os"
	"path"

	"golang.org/x/sys/unix"
)

const ueventsOf = 1

// listenUevents returns a file of the kernel's events about devices. Each read returns one event.
func listenUevents() (*os.File, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK,
		unix.NETLINK_KOBJECT_UEVENT)
	if err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	if err := unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: ueventsOf}); err != nil {
		unix.Close(fd)
		return nil, os.NewSyscallError("bind", err)
	}
	return os.NewFile(uintptr(fd), "uevents"), nil
}

func removedDevice(event []byte) (name string, ok bool) {
	header, _, _ := bytes.Cut(event, []byte{0}) // ACTION@DEVPATH (lib/kobject_uevent.c)
	devpath, ok := bytes.CutPrefix(header, []byte("remove@"))
	if !ok || len(devpath) == 0 {
		return "", false
	}
	return path.Base(string(devpath)), true
}

// hearRemovals calls gone with the name of each removed device in events, until a read fails, other than with
// ENOBUFS: the kernel drops events that are not read in time.
func hearRemovals(events *os.File, gone func(addr string)) {
	var b [8 << 10]byte // the kernel's events have at most 2 KiB and a header
	for {
		n, err := events.Read(b[:])
		if errors.Is(err, unix.ENOBUFS) {
			continue
		}
		if err != nil {
			return
		}
		if name, ok := removedDevice(b[:n]); ok {
			gone(name)
		}
	}
}
