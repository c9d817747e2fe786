package gvelab

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"runtime"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Addresses of the interface under test and of its peer.
var (
	underTest = netip.MustParsePrefix("10.9.0.1/24")
	peerAddr  = netip.MustParsePrefix("10.9.0.2/24")
)

const (
	underTestName = "eth0"
	peerName      = "eth1"
)

// namespace is a network namespace with a thread in it. It lives as long as the program.
type namespace struct {
	file  *os.File
	calls chan func()
}

func newNamespace() (*namespace, error) {
	n := &namespace{calls: make(chan func())}
	ready := make(chan error)
	go func() {
		runtime.LockOSThread() // and never unlocked: nobody else may get this thread
		err := os.NewSyscallError("unshare", unix.Unshare(unix.CLONE_NEWNET))
		if err == nil {
			n.file, err = os.Open("/proc/thread-self/ns/net")
		}
		ready <- err
		if err != nil {
			return
		}
		for f := range n.calls {
			f()
		}
	}()
	if err := <-ready; err != nil {
		return nil, fmt.Errorf("network namespace: %w", err)
	}
	return n, nil
}

// do runs f in the namespace.
func (n *namespace) do(f func() error) error {
	done := make(chan error)
	n.calls <- func() { done <- f() }
	return <-done
}

// take moves an interface there.
func (n *namespace) take(name string) error {
	link, err := netlink.LinkByName(name)
	if err == nil {
		err = netlink.LinkSetNsFd(link, int(n.file.Fd()))
	}
	if err != nil {
		return fmt.Errorf("move %s: %w", name, err)
	}
	return nil
}

// tcpSettings keep a connection alive through anything, and have it come back soon after: they are the namespace's own.
func tcpSettings() error {
	for name, v := range map[string]string{"tcp_rto_max_ms": "1000", "tcp_retries2": "200"} {
		if err := os.WriteFile("/proc/sys/net/ipv4/"+name, []byte(v), 0); err != nil {
			return err
		}
	}
	return nil
}

// bringUp brings an interface up with its address.
func bringUp(name string, p netip.Prefix) error {
	link, err := netlink.LinkByName(name)
	if err == nil {
		err = netlink.LinkSetUp(link)
	}
	if err == nil {
		err = netlink.AddrReplace(link,
			&netlink.Addr{IPNet: &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}})
	}
	if err != nil {
		return fmt.Errorf("%s: up: %w", name, err)
	}
	return nil
}

// takeDown takes an interface down.
func takeDown(name string) error {
	link, err := netlink.LinkByName(name)
	if err == nil {
		err = netlink.LinkSetDown(link)
	}
	if err != nil {
		return fmt.Errorf("%s: down: %w", name, err)
	}
	return nil
}

// flap takes an interface down and up again.
func flap(name string) error {
	if err := takeDown(name); err != nil {
		return err
	}
	link, err := netlink.LinkByName(name)
	if err == nil {
		err = netlink.LinkSetUp(link)
	}
	if err != nil {
		return fmt.Errorf("%s: up again: %w", name, err)
	}
	return nil
}
