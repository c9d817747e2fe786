package guest

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"sync/atomic"
	"syscall"
	"time"

	"vnic.dev/vnic/devmem"
	"vnic.dev/vnic/internal/devmemtool"
	"vnic.dev/vnic/internal/limits"
)

// Listener accepts connections whose payload is steered to Memory ([Device.ListenGPU]).
type Listener struct {
	devmem.Listener
	Memory *Memory
}

// ListenGPU listens on a port of Addr for connections whose payload arrives in GPU memory: it allocates
// Memory of size bytes, a multiple of devmem.PageSize, binds receive queue Queue to it, and steers the port's TCP
// traffic to the queue. Closing the device undoes this, and also the steps of a call that failed. Memory should have
// room for data in flight and for the frags that the program holds. If port is 0, the device picks a port, and all TCP
// traffic to Addr is steered. For several listeners use Alloc, BindRX, AddFlow and Listen.
func (d *Device) ListenGPU(port uint16, size uint64) (*Listener, error) {
	m, err := d.Alloc(size)
	if err != nil {
		return nil, err
	}
	if _, err := d.BindRX(m.Buffer, d.Queue); err != nil {
		return nil, err
	}
	local := netip.AddrPortFrom(d.Addr, port)
	if _, err := d.AddFlow(devmem.Flow{Dst: local, Queue: d.Queue}); err != nil {
		return nil, err
	}
	l, err := d.Listen(local)
	if err != nil {
		return nil, err
	}
	return &Listener{l, m}, nil
}

// Listen implements [devmem.Device]. The listener keeps the device's present StallLimit, which its connections have,
// and PeerLimit: if an AcceptConn waits for so long (0: for ever), it closes the listener and fails with
// os.ErrDeadlineExceeded.
func (d *Device) Listen(local netip.AddrPort) (devmem.Listener, error) {
	l, err := d.Device.Listen(local)
	if err != nil {
		return nil, err
	}
	return &limited{l, d.PeerLimit, d.StallLimit}, nil
}

// Dial implements [devmem.Device], with PeerLimit as its timeout (0: none). The connection has the device's present
// StallLimit.
func (d *Device) Dial(ctx context.Context, local, remote netip.AddrPort) (devmem.Conn, error) {
	ctx, cancel := d.untilPeer(ctx)
	defer cancel()
	c, err := d.Device.Dial(ctx, local, remote)
	if err != nil {
		return nil, err
	}
	c.SetStallLimit(d.StallLimit)
	return c, nil
}

func (d *Device) untilPeer(ctx context.Context) (context.Context, context.CancelFunc) {
	if d.PeerLimit == 0 {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, d.PeerLimit)
}

type limited struct {
	devmem.Listener
	peer, stall time.Duration
}

func (l *limited) Accept() (net.Conn, error) { return l.AcceptConn() }

func (l *limited) AcceptConn() (devmem.Conn, error) {
	ctx := context.Background()
	if l.peer > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, l.peer, fmt.Errorf("(%v) %w", l.peer, os.ErrDeadlineExceeded))
		defer cancel()
	}
	c, err := devmem.Accept(ctx, l.Listener)
	if err != nil {
		return nil, err
	}
	c.SetStallLimit(l.stall)
	return c, nil
}

// AcceptConn waits for a connection, at most for the PeerLimit that the device had when the Listener was made (0: for
// ever). If none comes in that time, it closes the Listener. The connection's Close does what [Device.DialGuest]
// describes.
func (l *Listener) AcceptConn() (devmem.Conn, error) {
	c, err := l.Listener.AcceptConn()
	if err != nil {
		return nil, err
	}
	return &conn{Conn: c}, nil
}

// Accept implements net.Listener.
func (l *Listener) Accept() (net.Conn, error) { return l.AcceptConn() }

// DialGuest connects to the device of a guest ([Device.AddrOf]). It tries again while the peer refuses, resets or does
// not answer the connection or cannot be reached, for at most PeerLimit (0: until ctx ends).
//
// The connection's Close ends this side's stream, and waits up to 5 seconds, or more on a slow machine (--slow), for
// the end of the peer's stream: with --nic virtio, once the device is closed, nothing retransmits lost data. After
// SetLinger(0), Close instead resets the connection at once.
func (d *Device) DialGuest(ctx context.Context, guest int, port uint16) (devmem.Conn, error) {
	to := netip.AddrPortFrom(d.AddrOf(guest), port)
	if !to.IsValid() {
		return nil, fmt.Errorf("guest%d: it has no device on this rail: %w", guest, syscall.EADDRNOTAVAIL)
	}
	ctx, cancel := d.untilPeer(ctx)
	defer cancel()
	c, err := devmemtool.DialAgain(ctx, func(ctx context.Context) (devmem.Conn, error) {
		return d.Dial(ctx, netip.AddrPortFrom(d.Addr, 0), to)
	}, nil)
	if err != nil {
		return nil, fmt.Errorf("guest%d: %w", guest, err)
	}
	return &conn{Conn: c}, nil
}

// Diagnose explains why payload of c arrives in host memory, or returns ""; [devmem.Diagnose] calls it.
func (c *conn) Diagnose() string { return devmem.Diagnose(c.Conn) }

type conn struct {
	devmem.Conn
	abort atomic.Bool
}

// Close implements net.Conn. Unless SetLinger(0) was called, it sends FIN, and then waits for the peer's FIN and drops
// data that arrives before. Payload in device memory, which Read cannot read, ends the wait.
func (c *conn) Close() error {
	if !c.abort.Load() && c.CloseWrite() == nil && c.SetReadDeadline(time.Now().Add(limits.CloseWait.Here())) == nil {
		for b, err := make([]byte, 4096), error(nil); err == nil; {
			_, err = c.Read(b)
		}
	}
	return c.Conn.Close()
}

// SetLinger implements devmem.Conn.
func (c *conn) SetLinger(sec int) error {
	c.abort.Store(sec == 0)
	return c.Conn.SetLinger(sec)
}
