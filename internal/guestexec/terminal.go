package guestexec

import (
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/internal/scm"
)

func openTerminal(size Size) (master, slave *os.File, err error) {
	fd, err := unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("terminal: /dev/ptmx: %w: has the kernel UNIX98_PTYS?", err)
	}
	master = os.NewFile(uintptr(fd), "/dev/ptmx")
	defer func() {
		if err != nil {
			_ = master.Close()
			master = nil
		}
	}()
	if err := unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0); err != nil {
		return master, nil, fmt.Errorf("terminal: unlock: %w", err)
	}
	n, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	if err != nil {
		return master, nil, fmt.Errorf("terminal: number: %w", err)
	}
	if err := setSize(master, size); err != nil {
		return master, nil, err
	}
	if slave, err = os.OpenFile("/dev/pts/"+strconv.Itoa(n), os.O_RDWR|unix.O_NOCTTY, 0); err != nil {
		return master, nil, fmt.Errorf("terminal: %w", err)
	}
	return master, slave, nil
}

// setSize sets a terminal's size; if it changes, the terminal's foreground processes get SIGWINCH.
func setSize(master *os.File, size Size) error {
	err := scm.Control(master, func(fd int) error {
		return unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Row: size.Rows, Col: size.Cols})
	})
	if err != nil {
		return fmt.Errorf("terminal: size: %w", err)
	}
	return nil
}
