package console

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// askSize moves a serial terminal's cursor as far as possible, asks for its position, which is the terminal's size, and
// moves it back (ECMA-48: CUP, DSR and CPR; DEC's DECSC and DECRC). ok: the terminal has answered within patience.
func askSize(tty *os.File, patience time.Duration) (size unix.Winsize, ok bool) {
	fd := int(tty.Fd())
	old, err := unix.IoctlGetTermios(fd, unix.TCGETS)
	if err != nil {
		return size, false
	}
	raw := *old
	raw.Lflag &^= unix.ICANON | unix.ECHO
	if err := unix.IoctlSetTermios(fd, unix.TCSETS, &raw); err != nil {
		return size, false
	}
	defer func() { _ = unix.IoctlSetTermios(fd, unix.TCSETS, old) }()
	if _, err := io.WriteString(tty, "\x1b7\x1b[999;999H\x1b[6n\x1b8"); err != nil {
		return size, false
	}
	var got []byte
	for end := time.Now().Add(patience); len(got) < 64; {
		fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		n, err := unix.Poll(fds, max(0, int(time.Until(end).Milliseconds())))
		if err == unix.EINTR {
			continue
		}
		b := make([]byte, 1)
		if n <= 0 || fds[0].Revents&unix.POLLIN == 0 {
			break
		}
		if n, err := unix.Read(fd, b); n != 1 || err != nil {
			break
		}
		if got = append(got, b[0]); b[0] == 'R' {
			break
		}
	}
	return parseSize(got)
}

// parseSize reads the CPR (cursor position report) at the end of b: ESC [ rows ; columns R. ok: there is one, and both
// numbers are at least 2.
func parseSize(b []byte) (size unix.Winsize, ok bool) {
	i := bytes.LastIndex(b, []byte("\x1b["))
	if i < 0 || b[len(b)-1] != 'R' {
		return size, false
	}
	var rows, cols uint16
	if n, err := fmt.Sscanf(string(b[i:]), "\x1b[%d;%dR", &rows, &cols); n != 2 || err != nil || rows < 2 || cols < 2 {
		return size, false
	}
	return unix.Winsize{Row: rows, Col: cols}, true
}
