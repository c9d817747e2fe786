package gateway

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"syscall"

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/internal/scm"
	"vnic.dev/vnic/splitter"
)

// Flow describes a socket of a datagram flow of NAT. The UDP sockets of a flow have one source port: one sends for
// each destination port, time to live and DF (IP_MTU_DISCOVER), and one receives from other ports of the same
// host.
type Flow struct {
	Proto uint8 // IP protocol: UDP; or ICMP, ICMPv6, for echoes
	// To is the address to which the socket is connected. With port 0 a UDP socket receives from any port of that
	// host to which no other socket of the flow is connected.
	To netip.AddrPort
	// Local is the port of an open UDP socket to the same host, which the new socket shares; 0: any port.
	Local uint16
	TTL   uint8 // of sent packets; 0: the host's default
	// DF forbids fragmentation: the kernel refuses packets that are longer than the path's MTU, as far as it knows that
	// (EMSGSIZE).
	DF bool
	// Buffer is the size of the receive buffer in bytes, at most 2 MiB and as far as net.core.rmem_max allows; 0: the
	// host's default.
	Buffer int
}

// forwardBuffer is the size in bytes of the receive buffer of the socket at a UDP forward's Listen, as far as
// net.core.rmem_max allows.
const forwardBuffer = 4 << 20

// Answer describes a socket for a guest that answers from another port than the forward's destination.
type Answer struct {
	Listen netip.AddrPort // the forward's, on the host
	Sender netip.AddrPort // outside sender, to which the socket is connected
	Buffer int            // as in Flow
}

func checkBuffer(n int) error {
	if n < 0 || n > flowBuffer {
		return fmt.Errorf("a buffer of %d bytes: %w", n, unix.EINVAL)
	}
	return nil
}

func (f *Flow) check() error {
	a := f.To.Addr()
	if err := checkBuffer(f.Buffer); err != nil {
		return err
	}
	switch {
	case !a.IsValid() || a.Is4In6():
		return fmt.Errorf("flow to %v: %w", f.To, unix.EINVAL)
	case f.Proto == splitter.ProtoUDP && (f.To.Port() != 0 || f.Local != 0):
		return nil
	case f.To.Port() != 0 || f.Local != 0:
	case f.Proto == protoICMP && a.Is4(), f.Proto == protoICMPv6 && a.Is6():
		return nil
	}
	return fmt.Errorf("flow of protocol %d to %v, local port %d: %w", f.Proto, f.To, f.Local, unix.EINVAL)
}

// options sets the options of the socket fd as f wants them.
func (f *Flow) options(fd int) error {
	type option struct{ level, name, value int }
	discover := map[bool]int{true: unix.IP_PMTUDISC_DO, false: unix.IP_PMTUDISC_DONT}[f.DF]
	list := []option{{unix.IPPROTO_IP, unix.IP_RECVERR, 1}, {unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, discover}}
	if f.TTL != 0 {
		list = append(list, option{unix.IPPROTO_IP, unix.IP_TTL, int(f.TTL)})
	}
	if f.To.Addr().Is6() {
		list = []option{{unix.IPPROTO_IPV6, unix.IPV6_RECVERR, 1}}
		if f.DF {
			list = append(list, option{unix.IPPROTO_IPV6, unix.IPV6_MTU_DISCOVER, unix.IPV6_PMTUDISC_DO},
				option{unix.IPPROTO_IPV6, unix.IPV6_DONTFRAG, 1})
		}
		if f.TTL != 0 {
			list = append(list, option{unix.IPPROTO_IPV6, unix.IPV6_UNICAST_HOPS, int(f.TTL)})
		}
	}
	if f.Buffer != 0 {
		list = append(list, option{unix.SOL_SOCKET, unix.SO_RCVBUF, f.Buffer})
	}
	if f.Local != 0 {
		list = append(list, option{unix.SOL_SOCKET, unix.SO_REUSEPORT, 1})
	}
	for _, o := range list {
		if err := unix.SetsockoptInt(fd, o.level, o.name, o.value); err != nil {
			return os.NewSyscallError("setsockopt", err)
		}
	}
	return nil
}

func (f *Flow) open(ctx context.Context) (*net.UDPConn, error) {
	if err := f.check(); err != nil {
		return nil, err
	}
	if f.Proto != splitter.ProtoUDP {
		return f.openEcho()
	}
	var failed error
	d := net.Dialer{LocalAddr: &net.UDPAddr{Port: int(f.Local)}, Control: func(_, _ string, c syscall.RawConn) error {
		return errors.Join(c.Control(func(fd uintptr) { failed = f.options(int(fd)) }), failed)
	}}
	c, err := d.DialContext(ctx, "udp", f.To.String())
	if err != nil {
		return nil, err
	}
	u := c.(*net.UDPConn)
	if f.Local == 0 { // not before the kernel chooses the port: it might give one that can be shared to two flows
		if err := reuse(u); err != nil {
			return nil, errors.Join(err, u.Close())
		}
	}
	return u, nil
}

// reuse lets other sockets of the same user share the port, if they set SO_REUSEPORT too (socket(7)).
func reuse(c *net.UDPConn) error {
	return scm.Control(c, func(fd int) error {
		return os.NewSyscallError("setsockopt", unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEPORT, 1))
	})
}

// openEcho makes a socket for echoes (icmp(7)). The error is EACCES if the host does not allow them
// (net.ipv4.ping_group_range).
func (f *Flow) openEcho() (*net.UDPConn, error) {
	domain, to := unix.AF_INET, unix.Sockaddr(&unix.SockaddrInet4{Addr: [4]byte(f.To.Addr().AsSlice())})
	if f.To.Addr().Is6() {
		a := &unix.SockaddrInet6{Addr: f.To.Addr().As16()}
		if z := f.To.Addr().Zone(); z != "" {
			i, err := net.InterfaceByName(z)
			if err != nil {
				return nil, err
			}
			a.ZoneId = uint32(i.Index)
		}
		domain, to = unix.AF_INET6, a
	}
	fd, err := unix.Socket(domain, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, int(f.Proto))
	if err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	file := os.NewFile(uintptr(fd), "echo")
	defer file.Close()
	if err := f.options(fd); err != nil {
		return nil, err
	}
	if err := unix.Connect(fd, to); err != nil {
		return nil, os.NewSyscallError("connect", err)
	}
	c, err := net.FileConn(file)
	if err != nil {
		return nil, err
	}
	return c.(*net.UDPConn), nil
}
