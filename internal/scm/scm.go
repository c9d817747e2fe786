// Package scm sends and receives bytes with descriptors over Unix sockets (SCM_RIGHTS, unix(7)).
package scm

import (
	"errors"
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// MaxFDs is how many descriptors an FDs can hold: vnic's max_msg_fds in vfio-user.
const MaxFDs = 16

// ErrAncillary is the cause of errors for control messages that cannot be parsed or have too many descriptors.
var ErrAncillary = errors.New("bad ancillary data")

// FDs holds descriptors that came with messages (Collect), until they are taken or closed. The zero FDs is ready for
// use.
type FDs struct {
	// Discard closes a descriptor that was not taken, or that is too many, or keeps it open; nil: function Close closes
	// it. close(2) of some kinds of descriptors waits for a server that the peer runs.
	Discard func(fd int)

	fd [MaxFDs]int
	n  int
}

// Len returns how many descriptors d has collected since Close, the taken ones included.
func (d *FDs) Len() int { return d.n }

// At returns descriptor i, which d still owns; -1 if it was taken.
func (d *FDs) At(i int) int { return d.fd[:d.n][i] }

// Take returns descriptor i, which the caller then owns; -1 if it was taken.
func (d *FDs) Take(i int) int {
	fd := d.At(i)
	d.fd[i] = -1
	return fd
}

// Close discards the descriptors that were not taken (Discard), and empties d.
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

// Collect adds to d the descriptors in the control messages oob. It discards (Discard) the descriptors with which d
// would have more than limit or MaxFDs, and then returns an error. Errors wrap ErrAncillary.
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

// Close closes fd unless it is negative.
func Close(fd int) {
	if fd >= 0 {
		_ = unix.Close(fd) // EIO: the descriptor is closed all the same
	}
}

// Dup returns another descriptor of the same file, with close-on-exec, or -1 if fd is negative.
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

// CheckEvent returns an error unless fd is an eventfd, which it makes non-blocking: reads and writes of other files (a
// full pipe, a file on FUSE) could block a datapath for ever. O_NONBLOCK belongs to the open file description, so it
// also holds for the peer that sent fd.
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
