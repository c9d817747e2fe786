package gateway

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/splitter"
)

func dialHost(ctx context.Context, network string, p permit) (net.Conn, error) {
	var d net.Dialer
	return d.DialContext(ctx, network, p.to.String())
}

func listenHost(addr netip.AddrPort) (Datagrams, error) {
	c, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(addr))
	if err != nil {
		return nil, err
	}
	_ = c.SetReadBuffer(forwardBuffer) // as much as the host allows
	raw, err := c.SyscallConn()
	if err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return &listener{UDPConn: c, raw: raw}, nil
}

type listener struct {
	*net.UDPConn
	raw syscall.RawConn
}

// Lost implements Datagrams.
func (l *listener) Lost() (n uint64) {
	_ = l.raw.Control(func(fd uintptr) {
		lost, _ := droppedBy(int(fd))
		n = uint64(lost)
	})
	return n
}

// openAnswer makes a UDP socket with a free port, connected to a.Sender. Its address is that of a.Listen; if that is
// unspecified, the kernel chooses one.
func openAnswer(ctx context.Context, a Answer) (*net.UDPConn, error) {
	if err := checkBuffer(a.Buffer); err != nil {
		return nil, err
	}
	d := net.Dialer{}
	if addr := a.Listen.Addr(); !addr.IsUnspecified() {
		d.LocalAddr = net.UDPAddrFromAddrPort(netip.AddrPortFrom(addr, 0))
	}
	c, err := d.DialContext(ctx, "udp", a.Sender.String())
	if err != nil {
		return nil, err
	}
	u := c.(*net.UDPConn)
	if a.Buffer != 0 {
		_ = u.SetReadBuffer(a.Buffer) // as much as the host allows
	}
	return u, nil
}

// A Dialer makes sockets of this process for a gateway in another process. It does not trust that process: it
// checks each request for a socket against the options given to NewDialer. Several goroutines may use a Dialer.
type Dialer struct {
	nat       bool
	policy    Policy
	forwards  []Forward
	host      *hostAddrs
	resolvers func() []netip.AddrPort

	mu     sync.Mutex
	opened map[uint16]netip.Addr // server's address of the latest UDP flow with a local port, which may have ended
}

// NewDialer makes a Dialer that checks requests against NAT, Policy and Forwards of a gateway's options.
func NewDialer(o Options) *Dialer {
	return &Dialer{nat: o.NAT, policy: o.Policy, forwards: o.Forwards, host: newHostAddrs(interfaceAddrs),
		resolvers: hostResolvers, opened: map[uint16]netip.Addr{}}
}

var _ Outside = (*Dialer)(nil)

func refusedOutside(to netip.AddrPort, why string) error {
	return fmt.Errorf("%v is refused: %s: %w", to, why, unix.EPERM)
}

// Dial implements Outside.
func (d *Dialer) Dial(ctx context.Context, network string, to netip.AddrPort) (net.Conn, error) {
	if !d.nat || network != "tcp" {
		return nil, refusedOutside(to, "no NAT")
	}
	p, no := d.policy.check(to, d.host)
	if no != nil {
		return nil, refusedOutside(to, no.rule.String())
	}
	return dialHost(ctx, network, p)
}

// OpenFlow implements Outside. It refuses an f.Local other than 0, unless this Dialer has opened a UDP socket with that
// port, and the latest one to f.To's host.
func (d *Dialer) OpenFlow(ctx context.Context, f Flow) (*net.UDPConn, error) {
	if !d.nat {
		return nil, refusedOutside(f.To, "no NAT")
	}
	if err := f.check(); err != nil {
		return nil, err
	}
	d.mu.Lock()
	opened := d.opened[f.Local]
	d.mu.Unlock()
	if f.Local != 0 && opened != f.To.Addr() {
		return nil, refusedOutside(f.To, "no flow of this machine's with that port")
	}
	if f.Proto != splitter.ProtoUDP || f.To.Port() != 0 { // a UDP socket without a port to send to only receives
		if _, no := d.policy.check(f.To, d.host); no != nil {
			return nil, refusedOutside(f.To, no.rule.String())
		}
	}
	c, err := f.open(ctx)
	if err == nil && f.Proto == splitter.ProtoUDP {
		d.mu.Lock()
		d.opened[uint16(c.LocalAddr().(*net.UDPAddr).Port)] = f.To.Addr()
		d.mu.Unlock()
	}
	return c, err
}

// OpenAnswer implements Outside.
func (d *Dialer) OpenAnswer(ctx context.Context, a Answer) (*net.UDPConn, error) {
	for _, f := range d.forwards {
		if f.Proto == "udp" && f.Listen.Addr() == a.Listen.Addr() && (f.Listen.Port() == 0 || f.Listen == a.Listen) {
			return openAnswer(ctx, a)
		}
	}
	return nil, refusedOutside(a.Listen, "no forward of UDP")
}

// DialResolver implements Outside.
func (d *Dialer) DialResolver(ctx context.Context, network string, to netip.AddrPort) (net.Conn, error) {
	if !d.nat || network != "tcp" && network != "udp" || !slices.Contains(d.resolvers(), to) {
		return nil, refusedOutside(to, "no resolver of this machine")
	}
	p, no := d.policy.checkResolver(to)
	if no != nil {
		return nil, refusedOutside(to, no.rule.String())
	}
	return dialHost(ctx, network, p)
}

// Resolvers implements Outside.
func (d *Dialer) Resolvers() []netip.AddrPort { return d.resolvers() }

// Addrs implements Outside.
func (d *Dialer) Addrs() ([]netip.Addr, error) { return interfaceAddrs() }

func interfaceAddrs() (out []netip.Addr, err error) {
	list, err := net.InterfaceAddrs()
	for _, l := range list {
		if n, ok := l.(*net.IPNet); ok {
			if a, ok := netip.AddrFromSlice(n.IP); ok {
				out = append(out, a.Unmap())
			}
		}
	}
	return out, err
}

// ListenUDP implements Outside: it refuses any address and port but the Listen of a UDP forward.
func (d *Dialer) ListenUDP(addr netip.AddrPort) (Datagrams, error) {
	for _, f := range d.forwards {
		if f.Proto == "udp" && f.Listen == addr {
			return listenHost(addr)
		}
	}
	return nil, refusedOutside(addr, "no forward of UDP")
}
