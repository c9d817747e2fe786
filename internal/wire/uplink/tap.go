package uplink

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"

	"golang.org/x/sys/unix"
)

type tap struct {
	name  string
	bytes int // the device's MTU when openTap opened it
	f     *os.File
	raw   *rawWriter
	count *counters
	one   [1][]byte
}

// openTap attaches this process to an existing tap device. It needs no privilege if root has made the device for this
// user ('ip tuntap add ... user NAME') and the user may open /dev/net/tun.
func openTap(name string, count *counters) (carrier, error) {
	i, err := net.InterfaceByName(name)
	if err != nil {
		return nil, fmt.Errorf("there is no device %s: 'ip tuntap add dev %s mode tap vnet_hdr' makes one, with user NAME "+
			"for who is not root; and 'ip link set %s up'", name, name, name)
	}
	fd, err := attach(name)
	if err != nil {
		return nil, err
	}
	t := &tap{name: name, bytes: i.MTU, f: os.NewFile(uintptr(fd), "/dev/net/tun"), count: count}
	if t.raw, err = newRawWriter(t.f); err != nil {
		return nil, errors.Join(err, t.f.Close())
	}
	return t, nil
}

// attach opens /dev/net/tun, and returns a descriptor that reads and writes frames of tap device name
// (Documentation/networking/tuntap.rst), each behind a virtio_net_hdr of vnetLen bytes.
func attach(name string) (_ int, err error) {
	const device = "/dev/net/tun"
	fd, err := unix.Open(device, unix.O_RDWR|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, &fs.PathError{Op: "open", Path: device, Err: err}
	}
	defer func() {
		if err != nil {
			_ = unix.Close(fd)
		}
	}()
	ifr, err := unix.NewIfreq(name)
	if err != nil {
		return -1, err
	}
	ifr.SetUint16(unix.IFF_TAP | unix.IFF_NO_PI | unix.IFF_VNET_HDR)
	err = unix.IoctlIfreq(fd, unix.TUNSETIFF, ifr)
	switch {
	case errors.Is(err, unix.EBUSY):
		return -1, fmt.Errorf("%s: %w: another program uses it", name, err)
	case errors.Is(err, unix.EPERM):
		return -1, fmt.Errorf("%s: %w: have it made for this user: 'ip tuntap add ... user NAME'", name, err)
	case errors.Is(err, unix.EINVAL):
		return -1, fmt.Errorf("%s: %w: it is no tap device, or one with several queues (multi_queue)", name, err)
	case err != nil:
		return -1, fmt.Errorf("%s: %w", name, err)
	}
	if err := unix.IoctlSetPointerInt(fd, unix.TUNSETVNETHDRSZ, vnetLen); err != nil {
		return -1, os.NewSyscallError("TUNSETVNETHDRSZ", err)
	}
	if err := unix.IoctlSetInt(fd, unix.TUNSETOFFLOAD, offloads); err != nil {
		return -1, os.NewSyscallError("TUNSETOFFLOAD", err)
	}
	return fd, nil
}

func (t *tap) mtu() (n int, why string) { return t.bytes, t.name + "'s own MTU" }

func (t *tap) room() int { return vnetLen }

// read implements carrier. Each Read of t.f returns one frame, behind its virtio_net_hdr.
func (t *tap) read(in func([]byte)) error {
	buf := make([]byte, vnetLen+maxSuper)
	for {
		n, err := t.f.Read(buf)
		if err != nil {
			return err
		}
		in(buf[:n])
	}
}

// write implements carrier. It passes each frame to the kernel by a system call of its own.
func (t *tap) write(fs []*frame, wait func()) {
	for _, f := range fs {
		putVnet(f.b)
		t.one[0] = f.b[:f.n]
		if _, err := t.raw.write(t.one[:], wait); err != nil && !errors.Is(err, os.ErrClosed) {
			if err == unix.EIO {
				err = fmt.Errorf("%w: 'ip link set %s up'", err, t.name)
			}
			t.count.refuse(notSent, "err", err)
		}
	}
}

func (t *tap) close() error {
	_ = t.f.Close()
	return nil
}
