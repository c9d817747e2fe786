package gvelab

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"runtime"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"vnic.dev/vnic/test/internal/guestops"
)

var (
	underTest = netip.MustParsePrefix("10.9.0.1/24")
	peerAddr  = netip.MustParsePrefix("10.9.0.2/24")
)

const (
	underTestName = "eth0"
	peerName      = "eth1"
)

// namespace is a network namespace with a thread in it.
type namespace struct {
	file  *os.File
	calls chan func()
}

func newNamespace() (*namespace, error) {
	n := &namespace{calls: make(chan func())}
	ready := make(chan error)
	go func() {
		runtime.LockOSThread() // and never unlocked: no other goroutine may get this thread
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

func (n *namespace) do(f func() error) error {
	done := make(chan error)
	n.calls <- func() { done <- f() }
	return <-done
}

func (n *namespace) take(name string) error {
	return guestops.Link(name, "move", func(l netlink.Link) error { return netlink.LinkSetNsFd(l, int(n.file.Fd())) })
}

// tcpSettings makes connections survive long outages and resume soon after.
func tcpSettings() error {
	for name, v := range map[string]string{"tcp_rto_max_ms": "1000", "tcp_retries2": "200"} {
		if err := os.WriteFile("/proc/sys/net/ipv4/"+name, []byte(v), 0); err != nil {
			return err
		}
	}
	return nil
}

func bringUp(name string, p netip.Prefix) error {
	addr := &netlink.Addr{IPNet: &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}}
	return guestops.Link(name, "up", func(l netlink.Link) error {
		return errors.Join(netlink.LinkSetUp(l), netlink.AddrReplace(l, addr))
	})
}

func takeDown(name string) error { return guestops.Link(name, "down", netlink.LinkSetDown) }

func flap(name string) error {
	if err := takeDown(name); err != nil {
		return err
	}
	return guestops.Link(name, "up again", netlink.LinkSetUp)
}
