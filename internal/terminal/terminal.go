// Package terminal gives a program in a guest the standard input of this process, and its terminal if it has
// one. Keys that are typed before the program starts are kept for it, and not echoed if the terminal's mode can be set.
package terminal

import (
	"io"
	"os"
	"os/signal"
	"sync"

	"golang.org/x/sys/unix"
	"golang.org/x/term"

	"vnic.dev/vnic/internal/atexit"
	"vnic.dev/vnic/internal/guestexec"
)

// Terminal has the standard input of this process, and its terminal if it has one.
type Terminal struct {
	In     io.ReadCloser       // nil: there is no input
	TTY    bool                // stdin, stdout and stderr are a terminal, whose mode was set
	Resize chan guestexec.Size // gets the latest size of the terminal after changes; nil: the mode of no terminal was set

	fd      int
	group   int // process group of this process
	mu      sync.Mutex
	mode    *unix.Termios // under mu: of the last call of set
	program *unix.Termios // the mode from Start on; nil: unchanged
	close   func()
	once    sync.Once
}

// Take takes this process's streams: in, which may be nil, and the terminal if in and err are terminals. If out is
// one, too, and the terminal's mode can be set, the program gets keys as they are typed, except escapes (Prefix);
// otherwise it gets lines of a terminal. The terminal echoes nothing until Start if its mode can be set. The caller
// closes the Terminal.
func Take(in *os.File, out, err any, a Actions) *Terminal {
	t := &Terminal{fd: -1, group: unix.Getpgrp(), close: func() {}}
	if in == nil {
		return t
	}
	input, ierr := NewInput(in)
	if ierr != nil {
		return t
	}
	t.In, t.close = input, func() { _ = input.Close() }
	if !Is(in) || !Is(err) {
		return t
	}
	t.fd = int(in.Fd())
	old, terr := unix.IoctlGetTermios(t.fd, unix.TCGETS)
	if terr != nil {
		return t
	}
	waiting := *old
	if !Is(out) { // the terminal's lines are the program's input
		waiting.Lflag &^= unix.ECHO
		if t.foreground() {
			t.hold(old, &waiting, old)
		}
		return t
	}
	raw := rawMode(old)
	waiting = *raw
	waiting.Lflag |= unix.ISIG // Ctrl-C ends what is being prepared
	waiting.Oflag |= old.Oflag // lines begin at the left
	if !t.hold(old, &waiting, raw) {
		return t
	}
	keys := NewKeys(input, a)
	t.In = keys
	closeHold := t.close
	t.close = func() {
		_ = keys.Close()
		closeHold()
	}
	return t
}

// rawMode returns the mode that cfmakeraw(3) makes of old.
func rawMode(old *unix.Termios) *unix.Termios {
	raw := *old
	raw.Iflag &^= unix.IGNBRK | unix.BRKINT | unix.PARMRK | unix.ISTRIP | unix.INLCR | unix.IGNCR | unix.ICRNL | unix.IXON
	raw.Oflag &^= unix.OPOST
	raw.Lflag &^= unix.ECHO | unix.ECHONL | unix.ICANON | unix.ISIG | unix.IEXTEN
	raw.Cflag &^= unix.CSIZE | unix.PARENB
	raw.Cflag |= unix.CS8
	raw.Cc[unix.VMIN], raw.Cc[unix.VTIME] = 1, 0
	return &raw
}

// hold sets the terminal's mode to waiting, until t.close, or the end of the process (atexit), sets it back to old.
// program is the mode from Start on; TTY is set unless program is old itself. hold returns false if it could not set
// the mode.
func (t *Terminal) hold(old, waiting, program *unix.Termios) bool {
	t.TTY = program != old
	if !t.set(waiting) {
		t.TTY = false
		return false
	}
	t.program = program
	back := func() { t.set(old) }
	done := atexit.Register(back)
	t.Resize = make(chan guestexec.Size, 1)
	changes, end := make(chan os.Signal, 1), make(chan struct{})
	signal.Notify(changes, unix.SIGWINCH, unix.SIGCONT)
	var wg sync.WaitGroup
	wg.Go(func() { t.follow(changes, end) })
	input := t.close
	t.close = func() {
		signal.Stop(changes)
		close(end)
		wg.Wait()
		back()
		done()
		input()
	}
	return true
}

// foreground reports whether this process is in the terminal's foreground process group: the kernel stops a process
// of another group that sets the mode (SIGTTOU).
func (t *Terminal) foreground() bool {
	group, err := unix.IoctlGetInt(t.fd, unix.TIOCGPGRP)
	return err == nil && group == t.group
}

// set sets the terminal's mode, and reports whether it could. If the terminal is only the program's input (TTY is
// false), and another process group is in the foreground, set leaves the mode to the next call of again.
func (t *Terminal) set(mode *unix.Termios) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.mode = mode
	return t.apply()
}

func (t *Terminal) apply() bool {
	if !t.TTY && !t.foreground() {
		return false
	}
	return unix.IoctlSetTermios(t.fd, unix.TCSETS, t.mode) == nil // TCSETS keeps typed bytes
}

// again sets the mode of the last set after this process was stopped, as a shell may have changed it.
func (t *Terminal) again() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.apply()
}

// follow sends the terminal's size to Resize after each signal, in place of a size that nobody has received. After
// SIGCONT it first sets the mode again. It returns when end is closed.
func (t *Terminal) follow(signals <-chan os.Signal, end <-chan struct{}) {
	for {
		select {
		case s := <-signals:
			if s == unix.SIGCONT {
				t.again()
			}
			select {
			case <-t.Resize: // an older size
			default:
			}
			t.Resize <- t.Size() // only follow sends
		case <-end:
			return
		}
	}
}

// Start sets the terminal's mode for the program, if Take could set a mode. If TTY is set, the program gets all keys
// except escapes (Prefix), and lines that are written to the terminal until Close must end in CR LF.
func (t *Terminal) Start() {
	if t.program != nil {
		t.set(t.program)
	}
}

// Close sets the terminal's mode back, if it was set, and ends reading from In. It may be called again.
func (t *Terminal) Close() { t.once.Do(func() { t.close() }) }

// Is reports whether a stream is an *os.File that is a terminal.
func Is(w any) bool {
	f, ok := w.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// Size returns the terminal's size, or 80 columns and 24 rows if it is unknown.
func (t *Terminal) Size() guestexec.Size {
	cols, rows, err := term.GetSize(t.fd)
	if err != nil || cols <= 0 || rows <= 0 || cols > 1<<15 || rows > 1<<15 {
		return guestexec.Size{Rows: 24, Cols: 80}
	}
	return guestexec.Size{Rows: uint16(rows), Cols: uint16(cols)}
}
