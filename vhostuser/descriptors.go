package vhostuser

import (
	"errors"
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// maxFDs is how many descriptors one message may carry: a SET_MEM_TABLE's.
const maxFDs = MaxTableRegions

// descriptors are those which came with a message. Who wants to keep one takes it; the others are closed with the message.
type descriptors struct {
	fd [maxFDs]int
	n  int
}

func (d *descriptors) slice() []int { return d.fd[:d.n] }

// take hands over descriptor i.
func (d *descriptors) take(i int) int {
	fd := d.fd[i]
	d.fd[i] = -1
	return fd
}

// close closes what nobody took.
func (d *descriptors) close() {
	for i, fd := range d.slice() {
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

// dupFD returns another descriptor of the same file, or -1 for -1.
func dupFD(fd int) (int, error) {
	if fd < 0 {
		return -1, nil
	}
	n, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return -1, fmt.Errorf("dup of descriptor %d: %w", fd, err)
	}
	return n, nil
}

// checkEvent makes sure that fd is an eventfd, which is what every Linux frontend sends (vhost-user.rst, "Support for
// platforms other than Linux", allows pipes elsewhere), and makes it non-blocking. Whoever holds it later reads and
// writes it on a queue's thread: anything else (a full pipe, a file on FUSE) could stop that thread for ever.
//
// O_NONBLOCK belongs to the open file, so the frontend sees it as well. QEMU and DPDK set it themselves.
func checkEvent(fd int) error {
	name, err := os.Readlink("/proc/self/fd/" + strconv.Itoa(fd))
	if err != nil {
		return fmt.Errorf("what is the descriptor: %w", err)
	}
	if name != "anon_inode:[eventfd]" {
		return fmt.Errorf("descriptor is %s, not an eventfd: %w", name, ErrBadMessage)
	}
	if err := unix.SetNonblock(fd, true); err != nil {
		return fmt.Errorf("eventfd: %w", err)
	}
	return nil
}
