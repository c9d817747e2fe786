package vfiouser

import (
	"errors"
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// MaxFDs is how many descriptors one message may carry (max_msg_fds; QEMU sends no more than 16).
const MaxFDs = 16

// descriptors are those which came with a message. Who wants to keep one takes it; the others are closed with the message.
type descriptors struct {
	fd [MaxFDs]int
	n  int
}

// take hands over descriptor i.
func (d *descriptors) take(i int) int {
	fd := d.fd[i]
	d.fd[i] = -1
	return fd
}

// close closes what nobody took.
func (d *descriptors) close() {
	for i, fd := range d.fd[:d.n] {
		closeFD(fd)
		d.fd[i] = -1
	}
	d.n = 0
}

// collect adds the descriptors in control messages. It closes those that are too many, and says so.
func (d *descriptors) collect(oob []byte) error {
	msgs, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return fmt.Errorf("ancillary data: %w: %w", err, ErrBadMessage)
	}
	over := 0
	for i := range msgs {
		fds, err := unix.ParseUnixRights(&msgs[i])
		if errors.Is(err, unix.EINVAL) {
			continue // credentials or the like
		} else if err != nil {
			return fmt.Errorf("ancillary data: %w: %w", err, ErrBadMessage)
		}
		for _, fd := range fds {
			if d.n == len(d.fd) {
				closeFD(fd)
				over++
				continue
			}
			d.fd[d.n] = fd
			d.n++
		}
	}
	if over > 0 {
		return fmt.Errorf("%d descriptors, more than %d: %w", d.n+over, len(d.fd), ErrBadMessage)
	}
	return nil
}

// closeFD closes fd unless it is -1.
func closeFD(fd int) {
	if fd >= 0 {
		_ = unix.Close(fd) // of a descriptor that is ours: EIO at worst, and gone all the same
	}
}

// checkEvent makes sure that fd is an eventfd and makes it non-blocking. A device writes to it on its datapath: anything
// else (a full pipe, a file on FUSE) could stop that for ever.
//
// O_NONBLOCK belongs to the open file, so the client sees it as well. QEMU sets it itself.
func checkEvent(fd int) error {
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
