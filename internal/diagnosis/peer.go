package diagnosis

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"syscall"
)

// dialing has errors of a connect, with sentences for a peer that is a guest's program and for one that is a
// server. %[1] is the peer's address, %[2] its port, %[3] both.
var dialing = []struct {
	errs         []error
	peer, server string
}{
	{[]error{syscall.ECONNREFUSED},
		"%[1]v answers, and no program listens at its port %[2]d: is the receiver started?",
		"%[1]v answers, and no server listens at its port %[2]d: start it, or give the port that it has"},
	{[]error{syscall.EHOSTUNREACH, syscall.EHOSTDOWN, syscall.ENETUNREACH},
		"nobody answers at %[1]v: is its guest up, and its device open? (with --nic virtio the address is there while its " +
			"program runs)",
		"nobody answers at %[1]v: is it the server's address, and the server up?"},
	{[]error{syscall.ETIMEDOUT, context.DeadlineExceeded, os.ErrDeadlineExceeded},
		"%[3]v neither accepts nor refuses: its program or its guest has ended or is stopped, or a rule leads the flow to " +
			"a queue without pages",
		"%[3]v neither accepts nor refuses: the server is stopped, or a firewall drops what it is sent"},
}

// Dial adds an explanation and advice to the error of a connect, if it knows one.
func Dial(err error, remote netip.AddrPort) error {
	if peer, _, _ := why(err, remote); peer != "" {
		return fmt.Errorf("%w: %s", err, peer)
	}
	return err
}

// DialServer replaces err, an error of a device's Dial, by an error with an explanation about servers. If it knows no
// explanation of err, it returns err.
func DialServer(err error, remote netip.AddrPort) error {
	_, server, cause := why(err, remote)
	if cause == nil {
		return err
	}
	return &net.OpError{Op: "dial", Net: "tcp", Addr: net.TCPAddrFromAddrPort(remote),
		Err: fmt.Errorf("%w: %s", cause, server)}
}

func why(err error, remote netip.AddrPort) (peer, server string, cause error) {
	for _, d := range dialing {
		for _, e := range d.errs {
			if errors.Is(err, e) {
				args := []any{remote.Addr(), remote.Port(), remote}
				return fmt.Sprintf(d.peer, args...), fmt.Sprintf(d.server, args...), e
			}
		}
	}
	return "", "", nil
}

// Ended adds to ECONNRESET or ETIMEDOUT, the end of a connection, what may have happened to the peer. It returns other
// errors as they are.
func Ended(err error, remote net.Addr) error {
	switch {
	case errors.Is(err, syscall.ECONNRESET):
		return fmt.Errorf("%w: the program at %v has ended, or has closed the connection with data unread", err, remote)
	case errors.Is(err, syscall.ETIMEDOUT):
		return fmt.Errorf("%w: %v does not answer any more: its program or its guest has ended", err, remote)
	}
	return err
}
