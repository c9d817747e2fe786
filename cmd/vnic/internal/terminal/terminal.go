// Package terminal gives a program of a guest the streams of this process: its standard input, which is let go of in
// time, and a terminal where it has one.
package terminal

import (
	"os"
	"os/signal"
	"sync"

	"golang.org/x/sys/unix"
	"golang.org/x/term"

	"vnic.dev/vnic/cmd/vnic/internal/atexit"
	"vnic.dev/vnic/guest-images/session"
)

// Streams are what a guest's program reads and writes.
type Streams struct {
	In     *Input // nil: nothing
	TTY    bool   // all three are one terminal, which is raw now
	Size   session.Size
	Resize chan session.Size
	Close  func() // sets the terminal back; before it nothing else is to be written there
}

// Own gives this process's streams: in, and a terminal if it is one with out and err. in may be nil.
func Own(in *os.File, out, err any) Streams {
	s := Streams{Close: func() {}}
	if in == nil {
		return s
	}
	input, ierr := NewInput(in)
	if ierr != nil {
		return s
	}
	s.In = input
	if !Is(in) || !Is(out) || !Is(err) {
		return s
	}
	fd := int(in.Fd())
	old, rerr := term.MakeRaw(fd)
	if rerr != nil {
		return s
	}
	back := func() { _ = term.Restore(fd, old) }
	done := atexit.Register(back)
	s.TTY, s.Size, s.Resize = true, size(fd), make(chan session.Size, 1)
	changes, end := make(chan os.Signal, 1), make(chan struct{})
	signal.Notify(changes, unix.SIGWINCH)
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			select {
			case <-changes:
				select {
				case <-s.Resize: // an older one
				default:
				}
				s.Resize <- size(fd) // only we send
			case <-end:
				return
			}
		}
	})
	s.Close = func() {
		signal.Stop(changes)
		close(end)
		wg.Wait()
		back()
		done()
	}
	return s
}

// Is says whether a stream is a terminal.
func Is(w any) bool {
	f, ok := w.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

func size(fd int) session.Size {
	cols, rows, err := term.GetSize(fd)
	if err != nil || cols <= 0 || rows <= 0 || cols > 1<<15 || rows > 1<<15 {
		return session.Size{Rows: 24, Cols: 80}
	}
	return session.Size{Rows: uint16(rows), Cols: uint16(cols)}
}
