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

// Listener accepts connections whose payload lands in Memory.
type Listener struct {
	devmem.Listener
	Memory *Memory
}

// ListenGPU listens on a port of Addr for connections whose payload is to land in GPU memory: it
// allocates that, binds receive queue Queue to it, and steers what comes to the port there. The
// device's Close undoes it. Memory should have room for what is on its way and for the frags that
// the program holds; 16 MiB are plenty. Port 0 picks one, and all that comes to Addr is steered. It
// can be done once: a program that wants several calls Alloc, BindRX, AddFlow and Listen.
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

// Listen is devmem.Device's. Connections have the device's StallLimit, and AcceptConn its PeerLimit: when nobody came
// by then it closes the listener and returns an error that is os.ErrDeadlineExceeded.
func (d *Device) Listen(local netip.AddrPort) (devmem.Listener, error) {
	l, err := d.Device.Listen(local)
	if err != nil {
		return nil, err
	}
	return &limited{l, d.PeerLimit, d.StallLimit}, nil
}

// Dial is devmem.Device's, within PeerLimit. The connection has the device's StallLimit.
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

// untilPeer is ctx with PeerLimit.
func (d *Device) untilPeer(ctx context.Context) (context.Context, context.CancelFunc) {
	if d.PeerLimit == 0 {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, d.PeerLimit)
}

// limited is a listener that waits for a peer for so long.
type limited struct {
	devmem.Listener
	peer, stall time.Duration
}

// Accept is AcceptConn, for net.Listener.
func (l *limited) Accept() (net.Conn, error) { return l.AcceptConn() }

// AcceptConn waits for a connection.
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

// AcceptConn waits for a connection, for the device's PeerLimit as Listen has it. Its Close is that of DialGuest's.
func (l *Listener) AcceptConn() (devmem.Conn, error) {
	c, err := l.Listener.AcceptConn()
	if err != nil {
		return nil, err
	}
	return &conn{Conn: c}, nil
}

// Accept is AcceptConn, for net.Listener.
func (l *Listener) Accept() (net.Conn, error) { return l.AcceptConn() }

// DialGuest connects to the device of a guest. Programs of several guests start in no order, so
// while no program listens there it tries again, for PeerLimit.
//
// The connection's Close ends what we send and waits until the peer has ended too, but not for
// longer than 5 seconds: once the device is closed nothing sends again what is lost.
// SetLinger(0) makes Close abort the connection at once.
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

// Diagnose is for devmem.Diagnose.
func (c *conn) Diagnose() string { return devmem.Diagnose(c.Conn) }

// conn is a connection that ends before its device does.
type conn struct {
	devmem.Conn
	abort atomic.Bool // by Close
}

// Close implements net.Conn. What the peer still sends is dropped; what lies in device memory ends
// the wait, as it cannot be read.
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
