package terminal

import (
	"bytes"
	"io"
	"os"
	"testing"

	"github.com/creack/pty"
	"golang.org/x/sys/unix"

	"vnic.dev/vnic/internal/guestexec"
	"vnic.dev/vnic/internal/testkit"
)

func until(t *testing.T, screen *os.File, words string) string {
	t.Helper()
	var b []byte
	for !bytes.HasSuffix(b, []byte(words)) {
		var one [1]byte
		if _, err := screen.Read(one[:]); err != nil {
			t.Fatalf("%v, after %q", err, b)
		}
		b = append(b, one[0])
	}
	return string(b)
}

func mode(t *testing.T, f *os.File) unix.Termios {
	t.Helper()
	return *testkit.Must(unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS))(t)
}

// From Take to Start the terminal does not echo typed keys, and none is lost.
func TestTerminalIsTakenBeforeTheProgramStarts(t *testing.T) {
	screen, tty, err := pty.Open()
	testkit.OK(t, err)
	defer screen.Close()
	defer tty.Close()
	before := mode(t, tty)
	left := make(chan bool)
	x := Take(tty, tty, tty, Actions{Leave: func() { close(left) }, Help: func() {}, Lost: func() {}})
	defer x.Close()
	if !x.TTY || mode(t, tty).Lflag&unix.ISIG == 0 {
		t.Errorf("a terminal: %v, %+v", x.TTY, mode(t, tty))
	}
	testkit.Must(screen.WriteString("ls\r"))(t)
	b := make([]byte, 3)
	testkit.Must(io.ReadFull(x.In, b[:2]))(t) // they would have been echoed by now
	testkit.Must(tty.WriteString("one\ntwo"))(t)
	testkit.Equal(t, "the screen", until(t, screen, "two"), "one\r\ntwo")
	testkit.OK(t, pty.Setsize(screen, &pty.Winsize{Rows: 33, Cols: 101}))
	testkit.Equal(t, "size", x.Size(), guestexec.Size{Rows: 33, Cols: 101})
	x.Start()
	if m := mode(t, tty); m.Lflag&unix.ISIG != 0 || m.Oflag&unix.OPOST != 0 {
		t.Errorf("not raw: %+v", m)
	}
	testkit.Must(screen.WriteString("\x03\x1a"))(t)
	testkit.Must(io.ReadFull(x.In, b))(t)
	testkit.Equal(t, "typed ahead, and later", string(b), "\r\x03\x1a")
	testkit.Must(screen.WriteString("\x1dq"))(t)
	<-left
	x.Close()
	x.Close()
	testkit.Equal(t, "mode", mode(t, tty), before)
}

func TestNoTerminal(t *testing.T) {
	screen, tty, err := pty.Open()
	testkit.OK(t, err)
	defer screen.Close()
	defer tty.Close()
	r, w, err := os.Pipe()
	testkit.OK(t, err)
	defer r.Close()
	before := mode(t, tty)
	testkit.Must(w.WriteString("a\x1dqb"))(t)
	testkit.OK(t, w.Close())
	x := Take(r, tty, tty, Actions{})
	x.Start()
	testkit.Equal(t, "a pipe has no escapes", string(testkit.Must(io.ReadAll(x.In))(t)), "a\x1dqb")
	x.Close()
	for _, out := range []any{w, nil} { // tty is not this process's controlling terminal: Take leaves its mode
		y := Take(tty, out, tty, Actions{})
		y.Start()
		if y.TTY || mode(t, tty) != before {
			t.Errorf("a terminal: %v, %+v", y.TTY, mode(t, tty))
		}
		y.Close()
	}
	if z := Take(nil, tty, tty, Actions{}); z.In != nil || z.TTY {
		t.Errorf("%+v", z)
	}
}
