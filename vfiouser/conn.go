package vfiouser

import (
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/internal/scm"
)

// conn receives and sends whole messages, for one goroutine.
type conn struct {
	sock      scm.Socket
	broken    bool // a message was received or sent only in part
	graceUsed bool // rest has already waited drainTimeout longer
	head      [HeaderLen]byte
	out       []byte // the reply: a header, then the handler's payload
}

// MaxFDs is how many descriptors one message may carry at most (max_msg_fds).
const MaxFDs = scm.MaxFDs

// message is a received message; body is valid until the next receive into it.
type message struct {
	Header
	body []byte
	fds  scm.FDs
	buf  []byte
}

// receive reads a message into m. It returns io.EOF if the peer closed between two messages, io.ErrUnexpectedEOF in
// the middle of one. m.fds may hold descriptors even after an error.
//
// receive takes only descriptors that come with the first bytes of a message; Linux drops others.
func (c *conn) receive(m *message) error {
	m.Header, m.body = Header{}, nil
	n, err := c.sock.ReadFDs(c.head[:], &m.fds)
	if c.broken = n > 0; err != nil {
		return err
	}
	if err := c.rest(c.head[n:]); err != nil {
		return fmt.Errorf("header: %w", err)
	}
	m.Header.decode(&c.head)
	if err := m.Header.check(); err != nil {
		return err
	}
	size := int(m.Size - HeaderLen)
	m.buf = slices.Grow(m.buf[:0], size)
	m.body = m.buf[:size]
	if err := c.rest(m.body); err != nil {
		return fmt.Errorf("%v: payload of %d bytes: %w", m.Command, size, err)
	}
	c.broken = false
	return nil
}

// rest fills b with the bytes that follow. If the read deadline passes, as when Serve is interrupted, rest waits
// drainTimeout longer, once in a connection.
func (c *conn) rest(b []byte) error {
	n, err := io.ReadFull(&c.sock, b)
	if errors.Is(err, os.ErrDeadlineExceeded) && !c.graceUsed {
		c.graceUsed = true
		if err = c.sock.SetReadDeadline(time.Now().Add(drainTimeout.Here())); err == nil {
			_, err = io.ReadFull(&c.sock, b[n:])
		}
		if derr := c.sock.SetReadDeadline(time.Unix(1, 0)); err == nil {
			err = derr
		}
	}
	if err == io.EOF { //nolint:errorlint // ReadFull returns it unwrapped: nothing was read
		err = io.ErrUnexpectedEOF
	}
	return err
}

// beginReply begins a reply in c.out, with space for the header.
func (c *conn) beginReply() { c.out = append(c.out[:0], make([]byte, HeaderLen)...) }

// reply sends c.out as the reply to m.
func (c *conn) reply(m *message) error {
	h := Header{ID: m.ID, Command: m.Command, Size: uint32(len(c.out)), Flags: FlagReply}
	return c.send(&h)
}

// refuse sends an error as the reply to m: "the reply message must only include the reply header".
func (c *conn) refuse(m *message, errno unix.Errno) error {
	h := Header{ID: m.ID, Command: m.Command, Size: HeaderLen, Flags: FlagReply | FlagError, Errno: uint32(errno)}
	c.beginReply()
	return c.send(&h)
}

// send sends c.out, with h at its beginning.
func (c *conn) send(h *Header) error {
	h.encode((*[HeaderLen]byte)(c.out))
	_, err := c.sock.Write(c.out)
	c.broken = err != nil
	return err
}

// discard reads, after CloseRead, what has arrived: closing a socket with unread bytes would reset the connection.
func (c *conn) discard() {
	if c.sock.SetReadDeadline(time.Time{}) != nil {
		return
	}
	var b [4096]byte
	for {
		if _, err := c.sock.Read(b[:]); err != nil {
			return
		}
	}
}

// peerClosed reports whether the client has closed its end of the connection.
func (c *conn) peerClosed() (gone bool) {
	_ = scm.Control(c.sock, func(fd int) error { // Control fails only if this end has closed the socket
		p := []unix.PollFd{{Fd: int32(fd)}}
		_, err := unix.Poll(p, 0)
		gone = err == nil && p[0].Revents&unix.POLLHUP != 0
		return nil
	})
	return gone
}
