package boot

import (
	"context"
	"fmt"
	"io"
	"path"
	"sync"

	"vnic.dev/vnic/internal/guestexec"
	"vnic.dev/vnic/internal/terminal"
)

type streams struct {
	in       io.Reader
	out, err io.Writer
	tty      bool
	size     guestexec.Size
	resize   chan guestexec.Size
	end      func() // called when the program has ended, with any status, and its status is known
}

// streams returns the streams of each guest's program: a single guest's are Options' Stdin, Stdout and Stderr; programs
// of several guests read nothing, and each line that they write gets the guest's number.
func (l *runner) streams() []streams {
	o := l.opt
	if o.Guests == 1 {
		return []streams{l.single()}
	}
	var list []streams
	mu := new(sync.Mutex)
	for i := range o.Guests {
		prefix := fmt.Sprintf("[%d] ", i)
		out, err := &lines{mu: mu, w: o.Stdout, prefix: prefix}, &lines{mu: mu, w: o.Stderr, prefix: prefix}
		list = append(list, streams{out: out, err: err, end: func() { out.end(); err.end() }})
	}
	return list
}

// takeTerminal sets the terminal up for guests, if Stdin and Stderr are one. For a single guest it may take keys as
// they are typed; then Ctrl-] q calls leave.
func (l *runner) takeTerminal(leave context.CancelCauseFunc) {
	o := l.opt
	out := any(o.Stdout)
	if o.Guests > 1 {
		out = nil
	}
	l.terminal = terminal.Take(o.Stdin, out, o.Stderr, terminal.Actions{Leave: func() { leave(terminal.ErrLeft) },
		Help: func() { o.Note("%s", terminal.Help) }, Lost: func() { o.Note("%s", terminal.Lost) }})
	if l.terminal.TTY && o.interactive() {
		o.Note("%s", terminal.Help)
	}
}

func (o *Options) interactive() bool { return len(o.Command) == 0 || shells[path.Base(o.Command[0])] }

func (l *runner) single() streams {
	t := l.terminal
	t.Start()
	s := streams{in: t.In, out: l.opt.Stdout, err: l.opt.Stderr, tty: t.TTY, end: func() {}}
	if t.TTY {
		s.size, s.resize = t.Size(), t.Resize
	}
	return s
}
