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

// Flow says which socket a flow of datagrams needs. Flows of one source port have one socket for each port that they
// send to, each time to live and each DF (IP_MTU_DISCOVER), so that nothing is set for each datagram, and one that
// hears what comes from other ports of the same host.
type Flow struct {
	Proto uint8 // of IP: UDP; or ICMP, ICMPv6, whose sockets send and hear echoes only
	// To is whom it is connected to. Without a port, one of UDP hears any port of that host, and sends nothing.
	To netip.AddrPort
	// Local is the port of a socket of UDP that was opened before, to a host that is To's, which both have then; 0:
	// any.
	Local uint16
	TTL   uint8 // of what it sends; 0: the host's default
	// DF has what is longer than the path takes refused (EMSGSIZE), and not be cut. All errors of the path are told in
	// the socket's error queue (IP_RECVERR).
	DF bool
	// Buffer is how many bytes it keeps until they are read, as far as net.core.rmem_max allows that; 0: the host's
	// default.
	Buffer int
}

// forwardBuffer is what the socket of a forward keeps, in bytes, as far as net.core.rmem_max allows that (socket(7)).
const forwardBuffer = 4 << 20

// Answer says which socket a guest behind a forward needs, to answer by another port than the forward's.
type Answer struct {
	Listen netip.AddrPort // the forward's
	Sender netip.AddrPort // who has sent to it, to whom it is connected
	Buffer int            // as Flow's
}

// checkBuffer refuses a buffer that no flow has.
func checkBuffer(n int) error {
	if n < 0 || n > flowBuffer {
		return fmt.Errorf("a buffer of %d bytes: %w", n, unix.EINVAL)
	}
	return nil
}

// check refuses what no flow is.
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

// options sets what is the same for all of a flow's packets.
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

// open makes the socket.
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
	if f.Local == 0 { // from here on, others of the flow can have its port; before, another flow could have got it
		if err := reuse(u); err != nil {
			return nil, errors.Join(err, u.Close())
		}
	}
	return u, nil
}

// reuse lets other sockets that ask for it have the same port, those of this user alone (SO_REUSEPORT, socket(7)).
func reuse(c *net.UDPConn) error {
	return scm.Control(c, func(fd int) error {
		return os.NewSyscallError("setsockopt", unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEPORT, 1))
	})
}

// openEcho makes a socket for echoes (icmp(7), net.ipv4.ping_group_range, which is IPv6's too). Where the host does not
// allow that it is EACCES.
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
