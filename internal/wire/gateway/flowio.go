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

// flowSocket is a socket of the host, of a flow.
type flowSocket struct {
	c     *net.UDPConn
	raw   syscall.RawConn
	to    permit // whom it sends to
	port  uint16 // the server's as the guest has it
	ttl   uint8
	df    bool
	local uint16
	bufs  *buffers // what it keeps

	end  context.CancelFunc // of its reader
	done chan struct{}      // closed when nothing is read any more

	lost uint32 // datagrams that it had no room for; of the reader
}

// flowReader is the flow that a socket is read for.
type flowReader interface {
	// heard gets a datagram, and may wait until ctx ends. from is not valid where the socket is connected.
	heard(ctx context.Context, s *flowSocket, from netip.AddrPort, b []byte)
	// troubled gets what became of a datagram, b: the control messages, and whom it was for.
	troubled(s *flowSocket, oob []byte, to netip.AddrPort, b []byte)
}

// newFlowSocket makes one of what open opens, with a buffer that it gives back at its end.
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

// socket opens one for datagrams like d.
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

// start reads the socket for a flow, until it is closed.
func (s *flowSocket) start(ctx context.Context, g *Gateway, f flowReader) {
	ctx, s.end = context.WithCancel(ctx)
	go func() {
		defer close(s.done)
		s.read(ctx, g, f)
	}()
}

// close closes the socket, and waits for its reader: what that has read and waits for the guest is lost.
func (s *flowSocket) close() {
	s.end()
	_ = s.c.Close()
	<-s.done
}

// closeAll closes sockets, and gives their buffers back.
func closeAll(list []*flowSocket) {
	for _, s := range list {
		s.close()
		s.bufs.free()
	}
}

// drop closes a socket that was not started, and gives its buffer back; nil: there is none.
func (s *flowSocket) drop() {
	if s != nil {
		_ = s.c.Close()
		s.bufs.free()
	}
}

// write sends one datagram without waiting: EAGAIN, if the socket has no room now. Errors of earlier datagrams are
// skipped (udp(7)).
func (s *flowSocket) write(b []byte) (err error) {
	if e := s.raw.Write(func(fd uintptr) bool {
		err = toSocket(int(fd), b)
		return true
	}); e != nil {
		return e
	}
	return err
}

// pendingErrors is for how many errors of datagrams before it a datagram's send is tried again, at most; one that is of
// the datagram itself comes again.
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

// writeWaiting waits for room for so long as a frame waits for a receiver; EAGAIN: there was none.
func (s *flowSocket) writeWaiting(ctx context.Context, b []byte) (err error) {
	_ = s.c.SetWriteDeadline(time.Now().Add(limits.Patience.Here()))
	defer s.c.SetWriteDeadline(time.Time{}) //nolint:errcheck // it is closed, then
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

// pathMTU is the one that the socket knows of its path; 0: it knows none.
func (s *flowSocket) pathMTU(v6 bool) (mtu int) {
	level, name := unix.IPPROTO_IP, unix.IP_MTU
	if v6 {
		level, name = unix.IPPROTO_IPV6, unix.IPV6_MTU
	}
	_ = s.raw.Control(func(fd uintptr) { mtu, _ = unix.GetsockoptInt(int(fd), level, name) })
	return max(mtu, 0)
}

// read passes on what comes to a socket, until it is closed.
func (s *flowSocket) read(ctx context.Context, g *Gateway, f flowReader) {
	for {
		err := s.raw.Read(func(fd uintptr) bool { return s.drain(ctx, g, f, int(fd)) != unix.EAGAIN })
		if ctx.Err() != nil || errors.Is(err, net.ErrClosed) || !g.pause() { // else it is out of memory, or the like
			return
		}
	}
}

// drain passes on all that a socket has: it ends with EAGAIN, or with what is wrong with the socket.
func (s *flowSocket) drain(ctx context.Context, g *Gateway, f flowReader, fd int) error {
	for n := 0; ctx.Err() == nil; n++ {
		b, from, err := receiveFrom(fd)
		switch {
		case err == nil:
			f.heard(ctx, s, from, b)
		case err == unix.EINTR:
		case s.troubles(f, fd): // pending errors are of datagrams before
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

// socketErrors are at most so many of a socket's that are read at a time.
const socketErrors = 64

// troubles reads what became of a socket's datagrams (IP_RECVERR, ip(7)); false if there was nothing.
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

// receiveFrom reads a datagram that is there. It has no more memory than that needs, as it may wait for its guest.
func receiveFrom(fd int) ([]byte, netip.AddrPort, error) {
	chunk := chunks.Get().(*[chunkLen]byte)
	defer chunks.Put(chunk)
	n, from, err := unix.Recvfrom(fd, chunk[:], unix.MSG_DONTWAIT)
	if err != nil {
		return nil, netip.AddrPort{}, err
	}
	return slices.Clone(chunk[:n]), addrPortOf(from), nil
}

// addrPortOf is a socket address as netip has it, without a zone.
func addrPortOf(a unix.Sockaddr) netip.AddrPort {
	switch a := a.(type) {
	case *unix.SockaddrInet4:
		return netip.AddrPortFrom(netip.AddrFrom4(a.Addr), uint16(a.Port))
	case *unix.SockaddrInet6:
		return netip.AddrPortFrom(netip.AddrFrom16(a.Addr), uint16(a.Port))
	}
	return netip.AddrPort{}
}

// ofDatagram says whether an error is one that a socket has of a datagram before, rather than of itself.
func ofDatagram(err error) bool {
	switch err {
	case unix.ECONNREFUSED, unix.EHOSTUNREACH, unix.ENETUNREACH, unix.EMSGSIZE, unix.EPROTO, unix.ENOPROTOOPT, unix.EACCES,
		unix.EHOSTDOWN, unix.ENONET, unix.EOPNOTSUPP:
		return true
	}
	return false
}

// countLost counts what a socket has had no room for.
func (s *flowSocket) countLost(g *Gateway, fd int) {
	if lost, ok := droppedBy(fd); ok {
		g.count.udpLost.Add(uint64(lost - s.lost))
		s.lost = lost
	}
}

// droppedBy is how many datagrams a socket has had no room for: the last of the numbers of SO_MEMINFO (SK_MEMINFO_DROPS
// of linux/sock_diag.h). They are as many bytes as a TCPInfo has up to Lost, which is in the place of that number.
func droppedBy(fd int) (uint32, bool) {
	info, err := unix.GetsockoptTCPInfo(fd, unix.SOL_SOCKET, unix.SO_MEMINFO)
	if err != nil {
		return 0, false
	}
	return info.Lost, true
}
