package rtnl

import (
	"fmt"
	"syscall"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// dumpBuffer holds the largest part of a dump. The kernel makes parts of up to 32 KiB
// (netlink_dump), and a larger part only for a link that needs more.
const dumpBuffer = 64 << 10

// dump requests a list. It calls each for the messages of type answer, and each must not keep them.
// If dump returns ErrInterrupted, some messages may be missing.
//
// dump does not use netlink.Conn.Receive, which would drop the last message; it may be the only one
// that is marked as interrupted.
func dump(kind, answer netlink.HeaderType, header []byte, each func(message []byte) error) error {
	c, err := netlink.Dial(unix.NETLINK_ROUTE, nil)
	if err != nil {
		return errno(err)
	}
	defer func() { _ = c.Close() }()
	request, err := c.Send(netlink.Message{
		Header: netlink.Header{Type: kind, Flags: netlink.Request | netlink.Dump}, Data: header,
	})
	if err != nil {
		return errno(err)
	}
	raw, err := c.SyscallConn()
	if err != nil {
		return errno(err)
	}
	d := dumpReader{sequence: request.Header.Sequence, answer: answer, each: each}
	for b := make([]byte, dumpBuffer); !d.done; {
		n, err := receive(raw, b)
		if err != nil {
			return err
		}
		if err := d.read(b[:n]); err != nil {
			return err
		}
	}
	if d.interrupted {
		return ErrInterrupted
	}
	return nil
}

// receive waits for one datagram.
func receive(c syscall.RawConn, b []byte) (n int, err error) {
	werr := c.Read(func(fd uintptr) bool {
		for {
			n, _, err = unix.Recvfrom(int(fd), b, unix.MSG_TRUNC)
			if err != unix.EINTR {
				return err != unix.EAGAIN
			}
		}
	})
	switch {
	case werr != nil:
		return 0, werr
	case err != nil:
		return 0, err
	case n > len(b): // n is the whole length, because of MSG_TRUNC
		return 0, fmt.Errorf("netlink datagram of %d bytes: %w", n, unix.EMSGSIZE)
	}
	return n, nil
}

// dumpReader reads the datagrams of a dump.
type dumpReader struct {
	sequence          uint32
	answer            netlink.HeaderType
	each              func(message []byte) error
	interrupted, done bool
}

func (d *dumpReader) read(datagram []byte) error {
	messages, err := syscall.ParseNetlinkMessage(datagram)
	if err != nil {
		return err
	}
	if len(messages) == 0 {
		return fmt.Errorf("netlink datagram of %d bytes without a message: %w", len(datagram), unix.EPROTO)
	}
	for _, m := range messages {
		if m.Header.Seq != d.sequence {
			continue
		}
		if m.Header.Flags&unix.NLM_F_DUMP_INTR != 0 {
			d.interrupted = true
		}
		switch m.Header.Type {
		case unix.NLMSG_DONE, unix.NLMSG_ERROR: // with 0 or a negative errno; old kernels sent NLMSG_DONE without it
			d.done = true
			if len(m.Data) < 4 {
				return nil
			}
			if e := int32(native.Uint32(m.Data)); e < 0 {
				return syscall.Errno(-e)
			}
			return nil
		case uint16(d.answer):
			if err := d.each(m.Data); err != nil {
				return err
			}
		}
	}
	return nil
}
