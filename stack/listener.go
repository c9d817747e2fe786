package stack

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"sync"
	"syscall"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
	"gvisor.dev/gvisor/pkg/waiter"

	"vnic.dev/vnic/devmem"
	"vnic.dev/vnic/internal/devmembase"
	"vnic.dev/vnic/internal/diagnosis"
	"vnic.dev/vnic/internal/ether"
)

// backlog is the default of net.core.somaxconn since Linux 5.4.
const backlog = 4096

// Listener implements devmem.Listener.
type Listener struct {
	s      *Stack
	ep     tcpip.Endpoint
	wq     waiter.Queue
	addr   *net.TCPAddr
	closed chan struct{}
	once   sync.Once
}

var _ devmem.Listener = (*Listener)(nil)

// local reports whether an address is one of the stack's, unspecified, or the zero Addr. Netstack would bind to other
// IPv4 addresses too.
func (s *Stack) local(a netip.Addr) bool {
	return !a.IsValid() || a.IsUnspecified() ||
		slices.ContainsFunc(s.addrs, func(p netip.Prefix) bool { return p.Addr() == a })
}

func fullAddr(a netip.AddrPort) tcpip.FullAddress {
	f := tcpip.FullAddress{Port: a.Port()}
	if a.Addr().IsValid() && !a.Addr().IsUnspecified() {
		f.NIC, f.Addr = ether.NIC, ether.Address(a.Addr())
	}
	return f
}

func tcpAddr(a tcpip.FullAddress) *net.TCPAddr {
	return &net.TCPAddr{IP: net.IP(a.Addr.AsSlice()), Port: int(a.Port)}
}

func keyOf(local, remote tcpip.FullAddress) flowKey {
	k := flowKey{SrcPort: remote.Port, DstPort: local.Port, Proto: uint8(tcp.ProtocolNumber),
		IPv6: remote.Addr.Len() == 16}
	copy(k.Src[:], remote.Addr.AsSlice())
	copy(k.Dst[:], local.Addr.AsSlice())
	return k
}

// Listen implements devmem.Device.
func (s *Stack) Listen(local netip.AddrPort) (devmem.Listener, error) {
	local = devmembase.Unmap(local)
	fail := func(err error) (devmem.Listener, error) {
		return nil, &net.OpError{Op: "listen", Net: "tcp", Addr: net.TCPAddrFromAddrPort(local), Err: err}
	}
	if !local.Addr().IsValid() {
		return fail(syscall.EINVAL)
	}
	if !s.local(local.Addr()) {
		return fail(syscall.EADDRNOTAVAIL)
	}
	l := &Listener{s: s, closed: make(chan struct{})}
	ep, err := s.ns.NewEndpoint(tcp.ProtocolNumber, ether.Protocol(local.Addr()), &l.wq)
	if err != nil {
		return fail(errno(err))
	}
	ep.SocketOptions().SetV6Only(true)
	ep.SocketOptions().SetReuseAddress(true)
	if err = ep.Bind(fullAddr(local)); err == nil {
		err = ep.Listen(backlog)
	}
	if err != nil {
		ep.Close()
		return fail(errno(err))
	}
	l.ep = ep
	addr, _ := ep.GetLocalAddress()
	l.addr = tcpAddr(addr)
	if len(l.addr.IP) == 0 {
		l.addr.IP = local.Addr().AsSlice()
	}
	if !s.listeners.Add(l, nil) {
		ep.Close()
		return fail(net.ErrClosed)
	}
	return l, nil
}

// Accept implements net.Listener.
func (l *Listener) Accept() (net.Conn, error) {
	return l.AcceptConn()
}

// AcceptConn implements devmem.Listener.
func (l *Listener) AcceptConn() (devmem.Conn, error) {
	fail := func(err error) (devmem.Conn, error) {
		return nil, &net.OpError{Op: "accept", Net: "tcp", Addr: l.addr, Err: err}
	}
	entry, ready := waiter.NewChannelEntry(waiter.ReadableEvents | waiter.EventHUp | waiter.EventErr)
	l.wq.EventRegister(&entry)
	defer l.wq.EventUnregister(&entry)
	for {
		if devmembase.IsClosed(l.closed) {
			return fail(net.ErrClosed)
		}
		ep, wq, err := l.ep.Accept(nil)
		switch err.(type) {
		case nil:
			c, err := l.s.newConn(ep, wq)
			if err != nil {
				continue // for example, the connection ended before newConn
			}
			return c, nil
		case *tcpip.ErrWouldBlock:
			select {
			case <-ready:
			case <-l.closed:
			case <-l.s.down:
				return fail(l.s.failed())
			}
		default:
			if devmembase.IsClosed(l.closed) {
				return fail(net.ErrClosed)
			}
			return fail(errno(err))
		}
	}
}

// Close implements net.Listener.
func (l *Listener) Close() error {
	err := net.ErrClosed
	l.once.Do(func() {
		err = nil
		close(l.closed)
		l.ep.Close()
		l.s.listeners.Remove(l)
		l.s.flows.sweepSoon()
	})
	return err
}

// Addr implements net.Listener.
func (l *Listener) Addr() net.Addr { return l.addr }

// Dial implements devmem.Device.
func (s *Stack) Dial(ctx context.Context, local, remote netip.AddrPort) (devmem.Conn, error) {
	local, remote = devmembase.Unmap(local), devmembase.Unmap(remote)
	fail := func(err error) (devmem.Conn, error) {
		if e, ok := err.(syscall.Errno); ok {
			err = os.NewSyscallError("connect", e)
		}
		return nil, &net.OpError{Op: "dial", Net: "tcp", Addr: net.TCPAddrFromAddrPort(remote), Err: diagnosis.Dial(err,
			remote)}
	}
	if !remote.IsValid() {
		return fail(syscall.EINVAL)
	}
	if !s.local(local.Addr()) {
		return fail(syscall.EADDRNOTAVAIL)
	}
	if s.conns.Closed() {
		return fail(net.ErrClosed)
	}
	if err := s.failed(); err != nil {
		return fail(err)
	}
	wq := &waiter.Queue{}
	ep, err := s.ns.NewEndpoint(tcp.ProtocolNumber, ether.Protocol(remote.Addr()), wq)
	if err != nil {
		return fail(errno(err))
	}
	if err := s.connect(ctx, ep, wq, local, remote); err != nil {
		ep.Close()
		return fail(err)
	}
	c, cerr := s.newConn(ep, wq)
	if cerr != nil {
		return fail(cerr)
	}
	return c, nil
}

func (s *Stack) connect(ctx context.Context, ep tcpip.Endpoint, wq *waiter.Queue, local, remote netip.AddrPort) error {
	if local.Addr().IsValid() || local.Port() != 0 {
		if err := ep.Bind(fullAddr(local)); err != nil {
			return errno(err)
		}
	}
	entry, ready := waiter.NewChannelEntry(waiter.WritableEvents | waiter.EventErr | waiter.EventHUp)
	wq.EventRegister(&entry)
	defer wq.EventUnregister(&entry)
	err := ep.Connect(fullAddr(remote))
	if _, ok := err.(*tcpip.ErrConnectStarted); ok {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-s.stop:
			return net.ErrClosed
		case <-s.down:
			return s.failed()
		case <-ready:
		}
		err = ep.LastError()
	}
	if err != nil {
		return errno(err)
	}
	return nil
}

// DialContext is like net.Dialer.DialContext for TCP, but it does not check that the address fits tcp4 or tcp6. The
// address and the port must be numeric.
func (s *Stack) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	to, err := netip.ParseAddrPort(address)
	if err != nil {
		return nil, &net.OpError{Op: "dial", Net: network, Err: fmt.Errorf("%q: not an address and port: %w", address, err)}
	}
	switch network {
	case "tcp", "tcp4", "tcp6":
	default:
		return nil, &net.OpError{Op: "dial", Net: network, Err: net.UnknownNetworkError(network)}
	}
	return s.Dial(ctx, netip.AddrPort{}, to)
}
