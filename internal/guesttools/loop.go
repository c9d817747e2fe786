package guesttools

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// loopDevice puts a file behind a free loop device (loop(4)), for reading. The caller is the only one that
// asks for loop devices: between the two ioctls another process could take the same one.
func loopDevice(file string) (string, error) {
	control, err := os.OpenFile("/dev/loop-control", os.O_RDWR, 0)
	if err != nil {
		return "", err
	}
	n, err := unix.IoctlRetInt(int(control.Fd()), unix.LOOP_CTL_GET_FREE)
	if err = errors.Join(os.NewSyscallError("LOOP_CTL_GET_FREE", err), control.Close()); err != nil {
		return "", err
	}
	path := fmt.Sprintf("/dev/loop%d", n)
	dev, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer func() { _ = dev.Close() }()
	image, err := os.Open(file)
	if err != nil {
		return "", err
	}
	defer func() { _ = image.Close() }() // the device keeps it open
	err = unix.IoctlSetInt(int(dev.Fd()), unix.LOOP_SET_FD, int(image.Fd()))
	return path, os.NewSyscallError("LOOP_SET_FD", err)
}
