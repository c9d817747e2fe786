package vhostuser

import (
	"errors"
	"fmt"
	"io"
	"net"

	"vnic.dev/vnic/internal/peer"
	"vnic.dev/vnic/internal/scm"
)

// conn sends and receives whole messages: at most one goroutine receives and one sends at a time.
type conn struct {
	sock scm.Socket
}

// maxFDs is how many descriptors one message may carry.
const maxFDs = MaxTableRegions

func newConn(sock *net.UnixConn) conn {
	return conn{sock: scm.Socket{UnixConn: sock, MaxFDs: maxFDs, Bad: ErrBadMessage}}
}

// message is a received message; body is valid until the next receive into it.
type message struct {
	Header
	body []byte
	fds  scm.FDs
	buf  [maxPayload]byte
}

// receive reads a message. If check returns an error for its header, receive returns that error and leaves the payload
// unread. It returns io.EOF if the peer closed between two messages, io.ErrUnexpectedEOF in the middle of one. m.fds
// may hold descriptors even after an error.
//
// Descriptors must come with the first byte of a message; else the error is ErrBadMessage.
func (c *conn) receive(m *message, check func(*Header) error) error {
	var head [headerLen]byte
	if err := c.readFull(head[:], &m.fds, true); err != nil {
		return err
	}
	m.Header = peer.Decode[Header](head[:])
	if err := check(&m.Header); err != nil {
		return err
	}
	if m.Size > maxPayload {
		return fmt.Errorf("%v: payload of %d bytes: %w", m.Request, m.Size, ErrBadMessage)
	}
	m.body = m.buf[:m.Size]
	if err := c.readFull(m.body, &m.fds, false); err != nil {
		return fmt.Errorf("%v: payload of %d bytes: %w", m.Request, m.Size, err)
	}
	return nil
}

// readFull fills b. With first, b is the start of a message: an end of the stream before b is io.EOF, and the first
// byte of b may bring descriptors.
func (c *conn) readFull(b []byte, fds *scm.FDs, first bool) error {
	for done := 0; done < len(b); {
		start := first && done == 0
		had := fds.Len()
		n, err := c.sock.ReadFDs(b[done:], fds)
		if err == nil && fds.Len() > had && !start {
			err = fmt.Errorf("descriptors in the middle of a message: %w", ErrBadMessage)
		}
		done += n
		if errors.Is(err, io.EOF) && !start {
			err = io.ErrUnexpectedEOF
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// send writes a message. The caller keeps the descriptors.
func (c *conn) send(h Header, body []byte, fds []int) error {
	b := peer.Append(make([]byte, 0, headerLen+maxPayload), h)
	return c.sock.WriteFDs(append(b, body...), fds)
}
