package gateway

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/internal/limits"
)

type flowSocket struct {
	c     *net.UDPConn
	raw   syscall.RawConn
	to    permit
	port  uint16 // the server's port as the guest sees it, 0 for echoes and flow.hears; for a forward, the guest's
	ttl   uint8
	df    bool
	local uint16
	bufs  *buffers

	end  context.CancelFunc
	done chan struct{} // closed when the reader has ended

	lost uint32 // only the reader uses it
}

type flowReader interface {
	// heard gets a datagram b that s has received, and its sender from. It may wait until ctx ends.
	heard(ctx context.Context, s *flowSocket, from netip.AddrPort, b []byte)
	// troubled gets an error of an earlier datagram of s: its data b, its destination, and in oob the control messages
	// with the error.
	troubled(s *flowSocket, oob []byte, to netip.AddrPort, b []byte)
}

// newFlowSocket makes a socket by open, within limits.Dial. After an error it frees bufs.
func newFlowSocket(ctx context.Context, bufs *buffers,
	open func(ctx context.Context) (*net.UDPConn, error)) (*flowSocket, error) {
	ctx, cancel := context.WithTimeout(ctx, limits.Dial.Here())
	defer cancel()
	c, err := open(ctx)
	if err != nil {
		bufs.free()
		return nil, err
	}
	raw, err := c.SyscallConn()
	if err != nil {
		bufs.free()
		return nil, errors.Join(err, c.Close())
	}
	return &flowSocket{c: c, raw: raw, local: uint16(c.LocalAddr().(*net.UDPAddr).Port), bufs: bufs,
		done: make(chan struct{})}, nil
}

func (f *flow) socket(want Flow, d *outgoing, bufs *buffers) (*flowSocket, error) {
	want.Buffer = bufs.size
	s, err := newFlowSocket(f.ctx, bufs, func(ctx context.Context) (*net.UDPConn, error) {
		return f.gateway.openFlow(ctx, want, d.to)
	})
	if err != nil {
		return nil, err
	}
	s.to, s.port, s.ttl, s.df = d.to, d.port, d.ttl, d.df
	return s, nil
}

func (s *flowSocket) start(ctx context.Context, g *Gateway, f flowReader) {
	ctx, s.end = context.WithCancel(ctx)
	go func() {
		defer close(s.done)
		s.read(ctx, g, f)
	}()
}

// close closes the socket, and waits until its reader has ended.
func (s *flowSocket) close() {
	s.end()
	_ = s.c.Close()
	<-s.done
}

func closeAll(list []*flowSocket) {
	for _, s := range list {
		s.close()
		s.bufs.free()
	}
}

// drop closes a socket that was not started, and gives its buffer back; s may be nil.
func (s *flowSocket) drop() {
	if s != nil {
		_ = s.c.Close()
		s.bufs.free()
	}
}

// write sends one datagram without waiting; EAGAIN: the socket has no room now.
func (s *flowSocket) write(b []byte) (err error) {
	if e := s.raw.Write(func(fd uintptr) bool {
		err = toSocket(int(fd), b)
		return true
	}); e != nil {
		return e
	}
	return err
}

// pendingErrors is how many times toSocket tries at most to send a datagram: each try may return the error of an
// earlier one.
const pendingErrors = 8

func toSocket(fd int, b []byte) (err error) {
	var before error
	for range pendingErrors {
		if _, err = unix.Write(fd, b); err == nil || err == unix.EAGAIN || err == unix.ENOBUFS || err == before {
			break
		}
		before = err
	}
	return err
}

// writeWaiting sends one datagram, and waits for room; EAGAIN: there was none for limits.Patience, or the socket is
// closed.
func (s *flowSocket) writeWaiting(ctx context.Context, b []byte) (err error) {
	_ = s.c.SetWriteDeadline(time.Now().Add(limits.Patience.Here()))
	defer s.c.SetWriteDeadline(time.Time{}) //nolint:errcheck // fails only if the socket is closed
	if ctx.Err() != nil {
		return ctx.Err()
	}
	err = unix.EAGAIN
	_ = s.raw.Write(func(fd uintptr) bool {
		err = toSocket(int(fd), b)
		return err != unix.EAGAIN
	})
	return err
}

func (s *flowSocket) pathMTU(v6 bool) (mtu int) {
	level, name := unix.IPPROTO_IP, unix.IP_MTU
	if v6 {
		level, name = unix.IPPROTO_IPV6, unix.IPV6_MTU
	}
	_ = s.raw.Control(func(fd uintptr) { mtu, _ = unix.GetsockoptInt(int(fd), level, name) })
	return max(mtu, 0)
}

func (s *flowSocket) read(ctx context.Context, g *Gateway, f flowReader) {
	for {
		err := s.raw.Read(func(fd uintptr) bool { return s.drain(ctx, g, f, int(fd)) != unix.EAGAIN })
		// After another error, such as ENOMEM, read pauses and tries again.
		if ctx.Err() != nil || errors.Is(err, net.ErrClosed) || !g.pause() {
			return
		}
	}
}

// drain passes on the datagrams and errors of a socket. It returns EAGAIN when none is left, net.ErrClosed
// when ctx has ended, or an error of the socket itself.
func (s *flowSocket) drain(ctx context.Context, g *Gateway, f flowReader, fd int) error {
	for n := 0; ctx.Err() == nil; n++ {
		b, from, err := receiveFrom(fd)
		switch {
		case err == nil:
			f.heard(ctx, s, from, b)
		case err == unix.EINTR:
		case s.troubles(f, fd): // pending errors belong to earlier datagrams
		case err == unix.EAGAIN:
			if n > 1 {
				s.countLost(g, fd)
			}
			return err
		case !ofDatagram(err):
			return err
		}
	}
	return net.ErrClosed
}

const socketErrors = 64

// troubles passes errors of a socket's datagrams (IP_RECVERR, ip(7)), at most socketErrors of them, to f.troubled. It
// reports whether there were any.
func (s *flowSocket) troubles(f flowReader, fd int) (some bool) {
	chunk := chunks.Get().(*[chunkLen]byte)
	defer chunks.Put(chunk)
	b := chunk[:]
	var oob [256]byte
	for range socketErrors {
		n, oobn, _, to, err := unix.Recvmsg(fd, b, oob[:], unix.MSG_ERRQUEUE|unix.MSG_DONTWAIT)
		if err != nil {
			return some
		}
		some = true
		f.troubled(s, oob[:oobn], addrPortOf(to), b[:n])
	}
	return some
}

// receiveFrom reads a datagram, and returns a copy without the rest of the chunk, because the datagram may wait.
func receiveFrom(fd int) ([]byte, netip.AddrPort, error) {
	chunk := chunks.Get().(*[chunkLen]byte)
	defer chunks.Put(chunk)
	n, from, err := unix.Recvfrom(fd, chunk[:], unix.MSG_DONTWAIT)
	if err != nil {
		return nil, netip.AddrPort{}, err
	}
	return slices.Clone(chunk[:n]), addrPortOf(from), nil
}

func addrPortOf(a unix.Sockaddr) netip.AddrPort {
	switch a := a.(type) {
	case *unix.SockaddrInet4:
		return netip.AddrPortFrom(netip.AddrFrom4(a.Addr), uint16(a.Port))
	case *unix.SockaddrInet6:
		return netip.AddrPortFrom(netip.AddrFrom16(a.Addr), uint16(a.Port))
	}
	return netip.AddrPort{}
}

// ofDatagram reports whether an error belongs to an earlier datagram, and not to the socket.
func ofDatagram(err error) bool {
	switch err {
	case unix.ECONNREFUSED, unix.EHOSTUNREACH, unix.ENETUNREACH, unix.EMSGSIZE, unix.EPROTO, unix.ENOPROTOOPT, unix.EACCES,
		unix.EHOSTDOWN, unix.ENONET, unix.EOPNOTSUPP:
		return true
	}
	return false
}

func (s *flowSocket) countLost(g *Gateway, fd int) {
	if lost, ok := droppedBy(fd); ok {
		g.count.udpLost.Add(uint64(lost - s.lost))
		s.lost = lost
	}
}

// droppedBy returns how many datagrams a socket has dropped: SK_MEMINFO_DROPS of SO_MEMINFO
// (linux/sock_diag.h), which lies at the offset of TCPInfo.Lost.
func droppedBy(fd int) (uint32, bool) {
	info, err := unix.GetsockoptTCPInfo(fd, unix.SOL_SOCKET, unix.SO_MEMINFO)
	if err != nil {
		return 0, false
	}
	return info.Lost, true
}
