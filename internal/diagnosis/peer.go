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

// Dial adds an explanation and advice to the error of a connect.
func Dial(err error, remote netip.AddrPort) error {
	switch reason, _ := why(err); reason {
	case syscall.ECONNREFUSED:
		return fmt.Errorf("%w: %v answers, and no program listens at its port %d: is the receiver started?", err,
			remote.Addr(), remote.Port())
	case syscall.EHOSTUNREACH:
		return fmt.Errorf("%w: nobody answers at %v: is its guest up, and its device open? (with --nic virtio the address "+
			"is there while its program runs)", err, remote.Addr())
	case syscall.ETIMEDOUT:
		return fmt.Errorf("%w: %v neither accepts nor refuses: its program or its guest has ended or is stopped, or a rule "+
			"leads the flow to a queue without pages", err, remote)
	}
	return err
}

// DialServer replaces the explanation in an error of a device's Dial, which is about receivers, by
// one about servers.
func DialServer(err error, remote netip.AddrPort) error {
	says := ""
	reason, cause := why(err)
	switch reason {
	case syscall.ECONNREFUSED:
		says = fmt.Sprintf("%v answers, and no server listens at its port %d: start it, or give the port that it has",
			remote.Addr(), remote.Port())
	case syscall.EHOSTUNREACH:
		says = fmt.Sprintf("nobody answers at %v: is it the server's address, and the server up?", remote.Addr())
	case syscall.ETIMEDOUT:
		says = fmt.Sprintf("%v neither accepts nor refuses: the server is stopped, or a firewall drops what it is sent",
			remote)
	default:
		return err
	}
	return &net.OpError{Op: "dial", Net: "tcp", Addr: net.TCPAddrFromAddrPort(remote),
		Err: fmt.Errorf("%w: %s", cause, says)}
}

// why returns the reason of a failed connect, as the errno that stands for similar ones, and the
// error in err that has it; 0: another reason.
func why(err error) (reason syscall.Errno, cause error) {
	for reason, like := range map[syscall.Errno][]error{
		syscall.ECONNREFUSED: {syscall.ECONNREFUSED},
		syscall.EHOSTUNREACH: {syscall.EHOSTUNREACH, syscall.EHOSTDOWN, syscall.ENETUNREACH},
		syscall.ETIMEDOUT:    {syscall.ETIMEDOUT, context.DeadlineExceeded, os.ErrDeadlineExceeded},
	} {
		for _, e := range like {
			if errors.Is(err, e) {
				return reason, e
			}
		}
	}
	return 0, nil
}

// Ended adds to an error that has ended a connection what it says about the peer.
func Ended(err error, remote net.Addr) error {
	switch {
	case errors.Is(err, syscall.ECONNRESET):
		return fmt.Errorf("%w: the program at %v has ended, or has closed the connection with data unread", err, remote)
	case errors.Is(err, syscall.ETIMEDOUT):
		return fmt.Errorf("%w: %v does not answer any more: its program or its guest has ended", err, remote)
	}
	return err
}
