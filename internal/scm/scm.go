// Package scm sends and receives bytes with descriptors over Unix sockets (SCM_RIGHTS, unix(7)).
package scm

import (
	"errors"
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// MaxFDs is how many descriptors an FDs can hold: vfio-user's max_msg_fds.
const MaxFDs = 16

// ErrAncillary is the cause of errors for control messages that the protocol does not allow.
var ErrAncillary = errors.New("bad ancillary data")

// FDs holds the descriptors that came with a message, until they are taken or closed. The zero FDs is ready for
// use.
type FDs struct {
	// Discard closes a descriptor that was not taken; nil: Close. close(2) of some kinds of descriptors waits for a
	// server that the peer runs.
	Discard func(fd int)

	fd [MaxFDs]int
	n  int
}

// Len returns how many descriptors were collected, the taken ones included.
func (d *FDs) Len() int { return d.n }

// At returns descriptor i, which d still owns; -1 if it was taken.
func (d *FDs) At(i int) int { return d.fd[:d.n][i] }

// Take returns descriptor i, which the caller then owns.
func (d *FDs) Take(i int) int {
	fd := d.At(i)
	d.fd[i] = -1
	return fd
}

// Close closes the descriptors that were not taken, and empties d.
func (d *FDs) Close() {
	for i, fd := range d.fd[:d.n] {
		d.discard(fd)
		d.fd[i] = -1
	}
	d.n = 0
}

func (d *FDs) discard(fd int) {
	switch {
	case fd < 0:
	case d.Discard != nil:
		d.Discard(fd)
	default:
		Close(fd)
	}
}

// Collect adds the descriptors in control messages, and closes those beyond limit or MaxFDs. Errors wrap
// ErrAncillary.
func (d *FDs) Collect(oob []byte, limit int) error {
	msgs, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrAncillary, err)
	}
	over := 0
	for i := range msgs {
		fds, err := unix.ParseUnixRights(&msgs[i])
		if errors.Is(err, unix.EINVAL) {
			continue // credentials or the like
		} else if err != nil {
			return fmt.Errorf("%w: %w", ErrAncillary, err)
		}
		for _, fd := range fds {
			if d.n == min(limit, MaxFDs) {
				d.discard(fd)
				over++
				continue
			}
			d.fd[d.n] = fd
			d.n++
		}
	}
	if over > 0 {
		return fmt.Errorf("%w: %d descriptors, more than %d", ErrAncillary, d.n+over, limit)
	}
	return nil
}

// Close closes fd unless it is -1.
func Close(fd int) {
	if fd >= 0 {
		_ = unix.Close(fd) // EIO: the descriptor is closed all the same
	}
}

// Dup returns another descriptor of the same file, or -1 for -1.
func Dup(fd int) (int, error) {
	if fd < 0 {
		return -1, nil
	}
	n, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return -1, fmt.Errorf("dup of descriptor %d: %w", fd, err)
	}
	return n, nil
}

// CheckEvent returns an error unless fd is an eventfd, and makes it non-blocking: reads and writes of anything
// else (a full pipe, a file on FUSE) could stop a datapath for ever. O_NONBLOCK belongs to the open file, so
// the peer sees it as well.
func CheckEvent(fd int) error {
	name, err := os.Readlink("/proc/self/fd/" + strconv.Itoa(fd))
	if err != nil {
		return fmt.Errorf("what is the descriptor: %w", err)
	}
	if name != "anon_inode:[eventfd]" {
		return fmt.Errorf("descriptor is %s, not an eventfd: %w", name, unix.EINVAL)
	}
	if err := unix.SetNonblock(fd, true); err != nil {
		return fmt.Errorf("eventfd: %w", err)
	}
	return nil
}
