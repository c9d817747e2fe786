package driver

import (
	"bytes"
	"errors"
	"os"
	"path"

	"golang.org/x/sys/unix"
)

// ueventsOf is the multicast group of the kernel's own events, of those of NETLINK_KOBJECT_UEVENT.
const ueventsOf = 1

// listenUevents gives what the kernel says of devices that come and go, an event a read.
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

// removedDevice is the last part of the path of a device that an event says has gone: of a PCI device its address.
func removedDevice(event []byte) (name string, ok bool) {
	header, _, _ := bytes.Cut(event, []byte{0}) // ACTION@DEVPATH (lib/kobject_uevent.c)
	devpath, ok := bytes.CutPrefix(header, []byte("remove@"))
	if !ok || len(devpath) == 0 {
		return "", false
	}
	return path.Base(string(devpath)), true
}

// hearRemovals tells of the PCI devices that go, until events is closed. Events that were too many to be kept are lost:
// the device's own descriptors and registers say in the end that it has gone.
func hearRemovals(events *os.File, gone func(addr string)) {
	var b [8 << 10]byte // of which the kernel fills 2 KiB and a header at most
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
