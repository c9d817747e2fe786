package kernelnic

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"vnic.dev/vnic/internal/control"
)

// channel is the NIC's control channel, over a packet socket (packet(7)).
type channel struct {
	f    *os.File
	ctl  *control.Client
	done chan struct{} // closed when the method read ends
}

func openChannel(name string, link *netlink.LinkAttrs) (*channel, error) {
	fail := func(err error) (*channel, error) {
		return nil, fmt.Errorf("%s: packet socket for the NIC's control channel: %w", name, err)
	}
	if len(link.HardwareAddr) != 6 {
		return fail(fmt.Errorf("MAC %v: %w", link.HardwareAddr, unix.EINVAL))
	}
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return fail(err)
	}
	var proto [2]byte
	binary.BigEndian.PutUint16(proto[:], control.EtherType)
	if err := unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: binary.NativeEndian.Uint16(proto[:]),
		Ifindex: link.Index}); err != nil {
		_ = unix.Close(fd)
		return fail(err)
	}
	c := &channel{f: os.NewFile(uintptr(fd), name), done: make(chan struct{})}
	c.ctl = control.NewClient(sender{c.f}, control.ClientOptions{MAC: [6]byte(link.HardwareAddr)})
	go c.read()
	return c, nil
}

func (c *channel) read() {
	defer close(c.done)
	var b [control.MaxFrame + 64]byte
	for {
		n, err := c.f.Read(b[:])
		if n > 0 {
			c.ctl.Receive(b[:n])
		}
		if err != nil && !transient(err) {
			return
		}
	}
}

func (c *channel) close() error {
	c.ctl.Close()
	err := c.f.Close()
	<-c.done
	return err
}

// sender is a control.Sender. The error of its Send wraps net.ErrClosed, unless transient is true for it.
type sender struct{ f *os.File }

func (s sender) Send(frame []byte) error {
	_, err := s.f.Write(frame)
	if err != nil && !transient(err) {
		return fmt.Errorf("%w: %w", net.ErrClosed, err)
	}
	return err
}

// transient reports whether the channel goes on after an error of the socket.
func transient(err error) bool {
	return errors.Is(err, unix.ENETDOWN) || errors.Is(err, unix.ENOBUFS) || errors.Is(err, unix.EAGAIN) ||
		errors.Is(err, unix.ENXIO)
}
