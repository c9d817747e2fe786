package vfiotest

import (
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/internal/scm"
	"vnic.dev/vnic/vfiouser"
)

var le = binary.LittleEndian

// Pair returns the two ends of a connection: one for Connect, one for Server.Serve.
func Pair() (client, server *net.UnixConn, err error) { return scm.Pair() }

// Error is an error reply of the server.
type Error struct {
	Command vfiouser.Command
	Errno   unix.Errno
}

// Error implements error.
func (e *Error) Error() string {
	return fmt.Sprintf("%v: the server says: %v", e.Command, e.Errno.Error())
}

// Unwrap returns the errno, for errors.Is.
func (e *Error) Unwrap() error { return e.Errno }

// Message is a message of the vfio-user protocol.
type Message struct {
	vfiouser.Header // if Size is 0, Send computes it
	Body            []byte
	FDs             []int // to send; the caller still owns them. Receive sets none
}

// Client is the client's end of a connection. Several goroutines may call its methods, but Send and Receive only while
// no other call sends or receives.
type Client struct {
	mu   sync.Mutex
	sock scm.Socket
	id   uint16
	caps string
}

// New returns a client that has sent nothing yet. It owns sock.
func New(sock *net.UnixConn) *Client { return &Client{sock: scm.Socket{UnixConn: sock}} }

// Connect negotiates the version on sock as QEMU does. The client owns sock; after an error sock is closed.
func Connect(sock *net.UnixConn) (*Client, error) {
	c := New(sock)
	const qemu = `{"capabilities": {"pgsizes": 4096, "max_msg_fds": 16, "max_dma_maps": 65535, ` +
		`"max_data_xfer_size": 1048576, "migration": {"pgsize": 4096, "max_bitmap_size": 268435456}, ` +
		`"write_multiple": true}}`
	caps, err := c.Version(0, 0, qemu)
	if err != nil {
		sock.Close()
		return nil, err
	}
	c.caps = caps
	return c, nil
}

// Capabilities returns the JSON text in the server's reply to Connect.
func (c *Client) Capabilities() string { return c.caps }

// Close closes the connection.
func (c *Client) Close() error { return c.sock.Close() }

// SetTimeout sets one deadline, d from now, for all sends and receives.
func (c *Client) SetTimeout(d time.Duration) error { return c.sock.SetDeadline(time.Now().Add(d)) }

// Conn returns the connection.
func (c *Client) Conn() *net.UnixConn { return c.sock.UnixConn }

// Send sends a message unchanged, but computes Size if it is 0.
func (c *Client) Send(m Message) error {
	if m.Size == 0 {
		m.Size = uint32(vfiouser.HeaderLen + len(m.Body))
	}
	b := make([]byte, 0, vfiouser.HeaderLen+len(m.Body))
	b = le.AppendUint16(b, m.ID)
	b = le.AppendUint16(b, uint16(m.Command))
	b = le.AppendUint32(b, m.Size)
	b = le.AppendUint32(b, uint32(m.Flags))
	b = le.AppendUint32(b, m.Errno)
	b = append(b, m.Body...)
	if err := c.sock.WriteFDs(b, m.FDs); err != nil {
		return fmt.Errorf("%v: %w", m.Command, err)
	}
	return nil
}

// Receive receives a message, which may be an error reply. It refuses a Size of more than
// 2*vfiouser.MaxTransfer.
func (c *Client) Receive() (Message, error) {
	var m Message
	var h [vfiouser.HeaderLen]byte
	if _, err := io.ReadFull(&c.sock, h[:]); err != nil {
		return m, fmt.Errorf("reply: %w", err)
	}
	m.Header = vfiouser.Header{ID: le.Uint16(h[0:]), Command: vfiouser.Command(le.Uint16(h[2:])), Size: le.Uint32(h[4:]),
		Flags: vfiouser.Flags(le.Uint32(h[8:])), Errno: le.Uint32(h[12:])}
	if m.Size < vfiouser.HeaderLen || m.Size > 2*vfiouser.MaxTransfer {
		return m, fmt.Errorf("reply to %v of %d bytes", m.Command, m.Size)
	}
	m.Body = make([]byte, m.Size-vfiouser.HeaderLen)
	if _, err := io.ReadFull(&c.sock, m.Body); err != nil {
		return m, fmt.Errorf("reply to %v: %w", m.Command, err)
	}
	return m, nil
}

// Request sends a command and returns the body of its reply, which must have size bytes; -1: any number. An error reply
// is an *Error, unless it has a body.
func (c *Client) Request(cmd vfiouser.Command, body []byte, size int, fds ...int) ([]byte, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.id++
	id := c.id
	if err := c.Send(Message{Header: vfiouser.Header{ID: id, Command: cmd}, Body: body, FDs: fds}); err != nil {
		return nil, err
	}
	m, err := c.Receive()
	switch {
	case err != nil:
		return nil, err
	case m.ID != id || m.Command != cmd || m.Flags&vfiouser.FlagType != vfiouser.FlagReply:
		return nil, fmt.Errorf("%v %d: reply %+v", cmd, id, m.Header)
	case m.Flags&vfiouser.FlagError != 0 && len(m.Body) != 0:
		return nil, fmt.Errorf("%v: an error reply with %d bytes", cmd, len(m.Body))
	case m.Flags&vfiouser.FlagError != 0:
		return nil, &Error{cmd, unix.Errno(m.Errno)}
	case size >= 0 && len(m.Body) != size:
		return nil, fmt.Errorf("%v: a reply with %d bytes, not %d", cmd, len(m.Body), size)
	}
	return m.Body, nil
}

// Version proposes a version, with the JSON text unless it is empty, and returns the JSON text of the reply. It refuses
// a reply of another major version or a greater minor one, and a reply that is longer than the request.
func (c *Client) Version(major, minor uint16, text string) (string, error) {
	b := le.AppendUint16(le.AppendUint16(nil, major), minor)
	if text != "" {
		b = append(append(b, text...), 0)
	}
	r, err := c.Request(vfiouser.CmdVersion, b, -1)
	if err != nil {
		return "", err
	}
	switch {
	case len(r) < 4 || le.Uint16(r) != major || le.Uint16(r[2:]) > minor:
		return "", fmt.Errorf("VERSION %d.%d: reply % x", major, minor, r)
	case len(r) > len(b): // QEMU has no room for a longer reply
		return "", fmt.Errorf("VERSION: reply of %d bytes to %d", len(r), len(b))
	case len(r) == 4:
		return "", nil
	case r[len(r)-1] != 0:
		return "", fmt.Errorf("VERSION: reply without a NUL: %q", r)
	}
	return string(r[4 : len(r)-1]), nil
}
