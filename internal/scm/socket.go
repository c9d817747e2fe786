package scm

import (
	"errors"
	"fmt"
	"io"
	"net"
	"syscall"

	"golang.org/x/sys/unix"
)

// Socket receives and sends bytes with descriptors. One goroutine at a time may receive. On a stream one
// goroutine at a time may send; on a SOCK_SEQPACKET socket several may.
type Socket struct {
	*net.UnixConn
	MaxFDs int   // most descriptors that ReadFDs accepts; at most the constant MaxFDs
	Bad    error // wrapped by ReadFDs's errors about descriptors
	oob    [16 + 4*MaxFDs]byte
}

// ReadFDs waits for bytes and reads at most len(b) of them. It adds the descriptors that come with them to fds, even if
// it returns an error. At the end of the stream it returns io.EOF.
//
// It has space for exactly s.MaxFDs descriptors (struct cmsghdr is 16 bytes on 64-bit machines): the kernel drops the
// rest and sets MSG_CTRUNC, for which ReadFDs returns an error.
func (s *Socket) ReadFDs(b []byte, fds *FDs) (int, error) {
	n, oobn, flags, _, err := s.ReadMsgUnix(b, s.oob[:16+4*s.MaxFDs])
	if oobn > 0 { // the descriptors are open, even if there is an error
		if err := fds.Collect(s.oob[:oobn], s.MaxFDs); err != nil {
			return n, fmt.Errorf("%w: %w", err, s.Bad)
		}
	}
	switch {
	case err != nil:
		return n, err
	case flags&unix.MSG_CTRUNC != 0:
		return n, fmt.Errorf("more than %d descriptors with a message, or no room for them in this process: %w", s.MaxFDs,
			s.Bad)
	case n == 0:
		return n, io.EOF
	}
	return n, nil
}

// WriteFDs writes all of b. The descriptors, which stay the caller's, go with the first byte of b; with an empty b they
// are not sent. Without descriptors WriteFDs uses write(2): a sandbox may forbid sendmsg(2).
func (s *Socket) WriteFDs(b []byte, fds []int) error {
	if len(fds) == 0 {
		_, err := s.Write(b)
		return err
	}
	oob := unix.UnixRights(fds...)
	for len(b) > 0 {
		n, oobn, err := s.WriteMsgUnix(b, oob, nil)
		if err != nil {
			return err
		}
		if b = b[n:]; oobn > 0 {
			oob = nil
		}
	}
	return nil
}

// Control calls f with the descriptor of a socket or file, which still owns the descriptor. It returns f's error, or an
// error if there is no descriptor.
func Control(socket any, f func(fd int) error) error {
	c, ok := socket.(syscall.Conn)
	if !ok {
		return fmt.Errorf("a %T has no descriptor: %w", socket, unix.EINVAL)
	}
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	e := raw.Control(func(fd uintptr) { err = f(int(fd)) })
	return errors.Join(e, err)
}
