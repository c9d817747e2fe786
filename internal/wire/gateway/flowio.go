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

// flowSocket is a socket of the host that belongs to a flow.
type flowSocket struct {
	c     *net.UDPConn
	raw   syscall.RawConn
	to    permit // destination
	port  uint16 // the server's port as the guest sees it; for a forward, the guest's port
	ttl   uint8
	df    bool
	local uint16
	bufs  *buffers // the receive buffer

	end  context.CancelFunc // ends the context of the reader
	done chan struct{}      // closed when the reader has ended

	lost uint32 // the last result of droppedBy; only the reader uses it
}

// flowReader is a flow that gets the datagrams and errors of a flowSocket.
type flowReader interface {
	// heard gets a datagram from a sender, and may wait until ctx ends.
	heard(ctx context.Context, s *flowSocket, from netip.AddrPort, b []byte)
	// troubled gets an error of a datagram that the socket sent: oob has the error's control
	// messages, to is the datagram's destination, b its data.
	troubled(s *flowSocket, oob []byte, to netip.AddrPort, b []byte)
}

// newFlowSocket makes a flowSocket of the socket that open opens, with bufs as its receive buffer.
// After an error it frees bufs.
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

// socket opens a socket for datagrams like d.
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

// start starts the socket's reader, which passes datagrams to a flow until the socket is closed.
func (s *flowSocket) start(ctx context.Context, g *Gateway, f flowReader) {
	ctx, s.end = context.WithCancel(ctx)
	go func() {
		defer close(s.done)
		s.read(ctx, g, f)
	}()
}

// close closes the socket, and waits until its reader has ended. A datagram that the reader holds
// for the guest is lost.
func (s *flowSocket) close() {
	s.end()
	_ = s.c.Close()
	<-s.done
}

// closeAll closes sockets, and gives their buffers back to the budget.
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

// write sends one datagram without waiting; EAGAIN: the socket has no room now. It skips errors of
// earlier datagrams (udp(7)).
func (s *flowSocket) write(b []byte) (err error) {
	if e := s.raw.Write(func(fd uintptr) bool {
		err = toSocket(int(fd), b)
		return true
	}); e != nil {
		return e
	}
	return err
}

// pendingErrors is how many times toSocket tries at most to send a datagram: each try may return
// the error of an earlier one. The same error twice in succession is the datagram's own.
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

// writeWaiting sends one datagram. It waits for room as long as a frame waits for a receiver
// (limits.Patience); EAGAIN: there was no room in that time.
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

// pathMTU returns the socket's path MTU; 0: unknown.
func (s *flowSocket) pathMTU(v6 bool) (mtu int) {
	level, name := unix.IPPROTO_IP, unix.IP_MTU
	if v6 {
		level, name = unix.IPPROTO_IPV6, unix.IPV6_MTU
	}
	_ = s.raw.Control(func(fd uintptr) { mtu, _ = unix.GetsockoptInt(int(fd), level, name) })
	return max(mtu, 0)
}

// read passes on received datagrams and errors, until the socket is closed or ctx ends.
func (s *flowSocket) read(ctx context.Context, g *Gateway, f flowReader) {
	for {
		err := s.raw.Read(func(fd uintptr) bool { return s.drain(ctx, g, f, int(fd)) != unix.EAGAIN })
		if ctx.Err() != nil || errors.Is(err, net.ErrClosed) || !g.pause() { // otherwise out of memory, or the like
			return
		}
	}
}

// drain passes on all datagrams and errors of a socket. It returns EAGAIN when none is left,
// net.ErrClosed when ctx has ended, or an error of the socket itself.
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

// socketErrors is how many errors of a socket troubles reads at a time.
const socketErrors = 64

// troubles reads errors of a socket's datagrams (IP_RECVERR, ip(7)); false: there were none.
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

// receiveFrom reads a datagram. It copies the datagram to memory of just its length, because the
// datagram may wait for its guest.
func receiveFrom(fd int) ([]byte, netip.AddrPort, error) {
	chunk := chunks.Get().(*[chunkLen]byte)
	defer chunks.Put(chunk)
	n, from, err := unix.Recvfrom(fd, chunk[:], unix.MSG_DONTWAIT)
	if err != nil {
		return nil, netip.AddrPort{}, err
	}
	return slices.Clone(chunk[:n]), addrPortOf(from), nil
}

// addrPortOf converts a socket address, without a zone.
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

// countLost counts the datagrams that the socket has dropped since the last call.
func (s *flowSocket) countLost(g *Gateway, fd int) {
	if lost, ok := droppedBy(fd); ok {
		g.count.udpLost.Add(uint64(lost - s.lost))
		s.lost = lost
	}
}

// droppedBy returns how many datagrams a socket has dropped: the last number of SO_MEMINFO
// (SK_MEMINFO_DROPS of linux/sock_diag.h). It reads the numbers into a TCPInfo, whose field Lost is at
// the offset of that number.
func droppedBy(fd int) (uint32, bool) {
	info, err := unix.GetsockoptTCPInfo(fd, unix.SOL_SOCKET, unix.SO_MEMINFO)
	if err != nil {
		return 0, false
	}
	return info.Lost, true
}
