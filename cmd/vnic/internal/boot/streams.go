package boot

import (
	"fmt"
	"io"
	"os"
	"os/signal"
	"sync"

	"golang.org/x/sys/unix"
	"golang.org/x/term"

	"vnic.dev/vnic/cmd/vnic/internal/atexit"
	"vnic.dev/vnic/guest-images/session"
)

// streams are what a guest's program reads and writes.
type streams struct {
	in       io.Reader // nil: nothing
	out, err io.Writer
	tty      bool
	size     session.Size
	resize   chan session.Size
	close    func() // sets the terminal back
	end      func() // after the last Write
}

// streams gives each guest's. One guest has those of this process, and a terminal when all three
// are one. Of several, none reads, and each line says which guest it is of.
func (l *runner) streams() []streams {
	o := l.opt
	if o.Guests == 1 {
		return []streams{o.own()}
	}
	var list []streams
	mu := new(sync.Mutex)
	for i := range o.Guests {
		prefix := fmt.Sprintf("[%d] ", i)
		out, err := &lines{mu: mu, w: o.Stdout, prefix: prefix}, &lines{mu: mu, w: o.Stderr, prefix: prefix}
		list = append(list, streams{out: out, err: err, close: func() {}, end: func() { out.end(); err.end() }})
	}
	return list
}

// own gives this process's streams.
func (o *Options) own() streams {
	s := streams{out: o.Stdout, err: o.Stderr, close: func() {}, end: func() {}}
	if o.Stdin == nil {
		return s
	}
	in, err := newInput(o.Stdin)
	if err != nil {
		return s
	}
	s.in = in
	if !isTerminal(o.Stdin) || !isTerminal(o.Stdout) || !isTerminal(o.Stderr) {
		return s
	}
	fd := int(o.Stdin.Fd())
	old, err := term.MakeRaw(fd)
	if err != nil {
		return s
	}
	back := func() { _ = term.Restore(fd, old) }
	done := atexit.Register(back)
	s.tty, s.size, s.resize = true, size(fd), make(chan session.Size, 1)
	changes, end := make(chan os.Signal, 1), make(chan struct{})
	signal.Notify(changes, unix.SIGWINCH)
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			select {
			case <-changes:
				select {
				case <-s.resize: // an older one
				default:
				}
				s.resize <- size(fd) // only we send
			case <-end:
				return
			}
		}
	})
	s.close = func() {
		signal.Stop(changes)
		close(end)
		wg.Wait()
		back()
		done()
	}
	return s
}

func isTerminal(w any) bool {
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
