// Package terminal gives a program of a guest the streams of this process: its standard input, which is let go of in
// time, and a terminal where it has one.
//
// A terminal is taken when a command begins, long before the program does: what is typed meanwhile is not echoed into
// what this process shows, and is kept for the program, MaxKeys bytes at most. An escape, Ctrl-], leaves a guest that
// does not answer.
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

// Terminal is what this process's streams are: perhaps no terminal at all.
type Terminal struct {
	In     io.ReadCloser // nil: nothing
	TTY    bool          // all three are one terminal
	Resize chan guestexec.Size

	fd      int
	group   int // this process's
	mu      sync.Mutex
	mode    *unix.Termios // under mu: what the terminal is to be now
	program *unix.Termios // what it is to be from Start on; nil: it is left alone
	close   func()
	once    sync.Once
}

// Take takes this process's streams: in, and a terminal if it is one with out and err. in may be nil. Until Start a
// terminal echoes nothing, and its keys for signals still make signals. The caller closes the Terminal.
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
	if !Is(out) { // its lines are the program's input, as of a pipe
		waiting.Lflag &^= unix.ECHO
		if t.foreground() {
			t.hold(old, &waiting, old)
		}
		return t
	}
	raw := rawMode(old)
	waiting = *raw
	waiting.Lflag |= unix.ISIG // Ctrl-C ends what is being prepared
	waiting.Oflag |= old.Oflag // lines of this process begin at the left
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

// rawMode is what cfmakeraw(3) makes of a mode.
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

// hold puts the terminal into a mode, until close puts it back, and follows its size. program is its mode from Start
// on.
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

// foreground reports whether this process has the terminal: otherwise it would be stopped when it sets its mode
// (SIGTTOU).
func (t *Terminal) foreground() bool {
	group, err := unix.IoctlGetInt(t.fd, unix.TIOCGPGRP)
	return err == nil && group == t.group
}

// set has the terminal be in a mode. One that is not the program's may be another process's by now, and is left alone.
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
	return unix.IoctlSetTermios(t.fd, unix.TCSETS, t.mode) == nil // TCSETS drops nothing of what was typed
}

// again sets the terminal to the mode that it was in before this process was stopped: a shell has had it.
func (t *Terminal) again() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.apply()
}

// follow tells of new sizes, and sets the terminal anew when this process was stopped meanwhile: a shell has had it.
func (t *Terminal) follow(signals <-chan os.Signal, end <-chan struct{}) {
	for {
		select {
		case s := <-signals:
			if s == unix.SIGCONT {
				t.again()
			}
			select {
			case <-t.Resize: // an older one
			default:
			}
			t.Resize <- t.Size() // only we send
		case <-end:
			return
		}
	}
}

// Start gives the terminal to the program: all keys are its own, but for the escape. Until Close nothing else is to be
// written there, but lines that end in CR LF.
func (t *Terminal) Start() {
	if t.program != nil {
		t.set(t.program)
	}
}

// Close sets the terminal back, and ends reading. It may be called more than once.
func (t *Terminal) Close() { t.once.Do(func() { t.close() }) }

// Is reports whether a stream is a terminal.
func Is(w any) bool {
	f, ok := w.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// Size is the terminal's now.
func (t *Terminal) Size() guestexec.Size {
	cols, rows, err := term.GetSize(t.fd)
	if err != nil || cols <= 0 || rows <= 0 || cols > 1<<15 || rows > 1<<15 {
		return guestexec.Size{Rows: 24, Cols: 80}
	}
	return guestexec.Size{Rows: uint16(rows), Cols: uint16(cols)}
}
