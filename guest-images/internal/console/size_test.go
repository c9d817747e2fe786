package console

import (
	"bytes"
	"os"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"vnic.dev/vnic/internal/testkit"
)

// terminal returns both ends of a pseudoterminal (pty(7)).
func terminal(t *testing.T) (master, slave *os.File) {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Skip(err)
	}
	t.Cleanup(func() { _ = master.Close() })
	fd := int(master.Fd())
	n, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	if err == nil {
		err = unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0)
	}
	if err != nil {
		t.Skip(err)
	}
	if slave, err = os.OpenFile("/dev/pts/"+strconv.Itoa(n), os.O_RDWR|unix.O_NOCTTY, 0); err != nil {
		t.Skip(err)
	}
	t.Cleanup(func() { _ = slave.Close() })
	return master, slave
}

func TestTerminalSaysItsSize(t *testing.T) {
	master, slave := terminal(t)
	before := testkit.Must(unix.IoctlGetTermios(int(slave.Fd()), unix.TCGETS))(t)
	answered := make(chan error, 1)
	go func() {
		var seen []byte
		b := make([]byte, 100)
		for !bytes.Contains(seen, []byte("\x1b[6n")) {
			n, err := master.Read(b)
			if err != nil {
				answered <- err
				return
			}
			seen = append(seen, b[:n]...)
		}
		_, err := master.WriteString("x\x1b[57;181R")
		answered <- err
	}()
	size, ok := askSize(slave, 10*time.Second)
	if err := <-answered; err != nil || !ok || size.Row != 57 || size.Col != 181 {
		t.Errorf("%+v, %v, %v", size, ok, err)
	}
	if after, err := unix.IoctlGetTermios(int(slave.Fd()), unix.TCGETS); err != nil || *after != *before {
		t.Errorf("terminal is not as it was: %+v, %v", after, err)
	}
	if _, ok := askSize(slave, time.Millisecond); ok {
		t.Error("nobody answered")
	}
	r, w, err := os.Pipe()
	testkit.OK(t, err)
	defer r.Close()
	defer w.Close()
	if _, ok := askSize(w, time.Hour); ok {
		t.Error("a pipe has a size")
	}
}

func FuzzSize(f *testing.F) {
	for _, s := range []string{"\x1b[24;80R", "\x1b[0;0R", "\x1b[;R", "\x1b[99999;1R", "R", "\x1b["} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if size, ok := parseSize(b); ok && (size.Row < 2 || size.Col < 2) {
			t.Errorf("%q: %+v", b, size)
		}
	})
}
