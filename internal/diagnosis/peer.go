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

// Dial adds to the error of a connect who does not answer, and what is to be looked at.
func Dial(err error, remote netip.AddrPort) error {
	is := func(es ...error) bool {
		for _, e := range es {
			if errors.Is(err, e) {
				return true
			}
		}
		return false
	}
	switch {
	case is(syscall.ECONNREFUSED):
		return fmt.Errorf("%w: %v answers, and no program listens at its port %d: is the receiver started?", err,
			remote.Addr(), remote.Port())
	case is(syscall.EHOSTUNREACH, syscall.EHOSTDOWN, syscall.ENETUNREACH):
		return fmt.Errorf("%w: nobody answers at %v: is its guest up, and its device open? (with --nic virtio the address "+
			"is there while its program runs)", err, remote.Addr())
	case is(syscall.ETIMEDOUT, context.DeadlineExceeded, os.ErrDeadlineExceeded):
		return fmt.Errorf("%w: %v neither accepts nor refuses: its program or its guest has ended or is stopped, or a rule "+
			"leads the flow to a queue without pages", err, remote)
	}
	return err
}

// Ended adds to an error that has ended a connection what it says of the peer.
func Ended(err error, remote net.Addr) error {
	switch {
	case errors.Is(err, syscall.ECONNRESET):
		return fmt.Errorf("%w: the program at %v has ended, or has closed the connection with data unread", err, remote)
	case errors.Is(err, syscall.ETIMEDOUT):
		return fmt.Errorf("%w: %v does not answer any more: its program or its guest has ended", err, remote)
	}
	return err
}
