package driver

import (
	"bytes"
	"errors"
	"os"
	"path"

	"golang.org/x/sys/unix"
)

const ueventsOf = 1

// listenUevents returns a file of the kernel's events about devices, one for each read.
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

// The kernel drops events if there are too many.
func hearRemovals(events *os.File, gone func(addr string)) {
	var b [8 << 10]byte // the kernel fills at most 2 KiB and a header
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
