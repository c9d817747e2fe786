package vhostuser

import (
	"errors"
	"fmt"
	"io"
	"net"

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/internal/scm"
)

// conn sends and receives whole messages. One goroutine receives and one sends at a time.
type conn struct {
	sock *net.UnixConn
	oob  [controlLen]byte
}

// maxFDs is how many descriptors one message may carry: a SET_MEM_TABLE's.
const maxFDs = MaxTableRegions

// controlLen has room for the control message of maxFDs descriptors and no more: the kernel drops the rest and sets
// MSG_CTRUNC. (A struct cmsghdr is 16 bytes on 64-bit machines, descriptors 4; more than needed is no harm.)
const controlLen = 16 + 4*maxFDs

// message is a received message. body is valid until the next one; fds are closed by who received it.
type message struct {
	Header
	body []byte
	fds  scm.FDs
	buf  [maxPayload]byte
}

// receive reads a header and what check, which sees the header before the payload is read, lets pass. It returns io.EOF
// when the peer closed between two messages, io.ErrUnexpectedEOF in the middle of one. m.fds may hold descriptors even
// then.
//
// Descriptors ride on the first byte of a message, so what comes with bytes that are read later is
// an error. (A read ends after the piece of the stream that descriptors came with, and none reaches
// beyond its message: nobody gets another's.)
func (c *conn) receive(m *message, check func(*Header) error) error {
	var head [headerLen]byte
	if err := c.readFull(head[:], &m.fds, true); err != nil {
		return err
	}
	m.Header.decode(&head)
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

// readFull fills b. With first, b starts a message: there an end of the stream is in order, and descriptors are.
func (c *conn) readFull(b []byte, fds *scm.FDs, first bool) error {
	for done := 0; done < len(b); {
		n, oobn, flags, _, err := c.sock.ReadMsgUnix(b[done:], c.oob[:])
		// Descriptors first: whatever else is wrong, they are open now.
		start := first && done == 0
		had := fds.Len()
		if oobn > 0 {
			if err := fds.Collect(c.oob[:oobn], maxFDs); err != nil {
				return fmt.Errorf("%w: %w", err, ErrBadMessage)
			}
		}
		switch {
		case flags&unix.MSG_CTRUNC != 0:
			return fmt.Errorf("more than %d descriptors with a message, or no room for them in this process: %w", maxFDs,
				ErrBadMessage)
		case fds.Len() > had && !start:
			return fmt.Errorf("descriptors in the middle of a message: %w", ErrBadMessage)
		}
		done += n
		if err == nil && n == 0 {
			err = io.EOF
		}
		if errors.Is(err, io.EOF) && !start {
			err = io.ErrUnexpectedEOF
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// send writes a message. The descriptors stay the caller's.
func (c *conn) send(h Header, body []byte, fds []int) error {
	var head [headerLen]byte
	h.encode(&head)
	b := make([]byte, 0, headerLen+maxPayload)
	b = append(append(b, head[:]...), body...)
	return c.write(b, fds)
}

// write writes all of b; the descriptors go with its first byte.
func (c *conn) write(b []byte, fds []int) error {
	var oob []byte
	if len(fds) > 0 {
		oob = unix.UnixRights(fds...)
	}
	for len(b) > 0 {
		n, oobn, err := c.sock.WriteMsgUnix(b, oob, nil)
		if err != nil {
			return err
		}
		if b = b[n:]; oobn > 0 {
			oob = nil
		}
	}
	return nil
}
