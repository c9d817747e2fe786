package kerneltest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"runtime"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// peer is an ordinary TCP host: an interface in a new network namespace, and a thread there that makes the
// sockets.
type peer struct {
	addr  netip.Addr
	calls chan func() // functions that the thread in the namespace calls
	done  chan struct{}
}

// newPeer moves an interface to a new network namespace, and brings the interface up with addrs. Addr returns
// the first of addrs, until the field addr is set.
func newPeer(name string, addrs []netip.Prefix) (*peer, error) {
	p := &peer{addr: addrs[0].Addr(), calls: make(chan func()), done: make(chan struct{})}
	ready := make(chan error)
	go p.run(name, addrs, ready)
	if err := <-ready; err != nil {
		<-p.done
		return nil, fmt.Errorf("peer %s: %w", name, err)
	}
	return p, nil
}

func (p *peer) run(name string, addrs []netip.Prefix, ready chan<- error) {
	defer close(p.done)
	runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
	err := enter(name)
	if err == nil {
		err = bringUp(name, addrs)
	}
	ready <- err
	if err != nil {
		return
	}
	for f := range p.calls {
		f()
	}
}

// enter moves this thread, which must be locked, and the interface to a new network namespace.
func enter(name string) error {
	was, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		return err
	}
	defer was.Close()
	link, err := netlink.LinkByName(name)
	if err != nil {
		return err
	}
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		return os.NewSyscallError("unshare", err)
	}
	now, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		return err
	}
	defer now.Close()
	if err := unix.Setns(int(was.Fd()), unix.CLONE_NEWNET); err != nil {
		return os.NewSyscallError("setns", err)
	}
	if err := netlink.LinkSetNsFd(link, int(now.Fd())); err != nil {
		return fmt.Errorf("move: %w", err)
	}
	return os.NewSyscallError("setns", unix.Setns(int(now.Fd()), unix.CLONE_NEWNET))
}

func bringUp(name string, addrs []netip.Prefix) error {
	link, err := netlink.LinkByName(name)
	if err != nil {
		return err
	}
	if err := netlink.LinkSetUp(link); err != nil {
		return fmt.Errorf("up: %w", err)
	}
	for _, p := range addrs {
		a := &netlink.Addr{IPNet: &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}}
		if p.Addr().Is6() {
			a.Flags = unix.IFA_F_NODAD
		}
		if err := netlink.AddrReplace(link, a); err != nil {
			return fmt.Errorf("address %v: %w", p, err)
		}
	}
	return nil
}

// do makes the thread in the namespace run f, and waits until f has returned.
func (p *peer) do(f func()) {
	ran := make(chan struct{})
	p.calls <- func() { defer close(ran); f() }
	<-ran
}

func (p *peer) close() {
	close(p.calls)
	<-p.done
}

// Addr implements devmemtest.Host.
func (p *peer) Addr() netip.Addr { return p.addr }

// Listen implements devmemtest.Host.
func (p *peer) Listen(local netip.AddrPort) (l net.Listener, err error) {
	p.do(func() { l, err = net.ListenTCP("tcp", net.TCPAddrFromAddrPort(local)) })
	return l, err
}

// Dial implements devmemtest.Host; if local is valid, it returns ErrUnsupported. Go makes the socket of a numeric
// address in the goroutine that dials, so the socket is in the namespace.
func (p *peer) Dial(ctx context.Context, local, remote netip.AddrPort) (c net.Conn, err error) {
	if local.IsValid() {
		return nil, fmt.Errorf("dial from %v: %w", local, errors.ErrUnsupported)
	}
	p.do(func() { c, err = (&net.Dialer{}).DialContext(ctx, "tcp", remote.String()) })
	return c, err
}
