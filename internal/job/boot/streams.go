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

// streams are the input and output of a guest's program.
type streams struct {
	in       io.Reader // nil: no input
	out, err io.Writer
	tty      bool
	size     guestexec.Size
	resize   chan guestexec.Size
	end      func() // called after the last Write, but not after an error
}

// streams returns the streams of each guest's program. One guest alone uses this process's streams, and a terminal if
// all three are the same terminal. Programs of several guests read nothing, and each line of output names its guest.
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

// takeTerminal sets this process's terminal up for guests, if there is one. leave ends the command.
func (l *runner) takeTerminal(leave context.CancelCauseFunc) {
	o := l.opt
	out := any(o.Stdout)
	if o.Guests > 1 {
		out = nil // no guest's program uses the terminal
	}
	l.terminal = terminal.Take(o.Stdin, out, o.Stderr, terminal.Actions{Leave: func() { leave(terminal.ErrLeft) },
		Help: func() { o.Note("%s", terminal.Help) }, Lost: func() { o.Note("%s", terminal.Lost) }})
	if l.terminal.TTY && o.interactive() {
		o.Note("%s", terminal.Help)
	}
}

// interactive reports whether the command is a shell.
func (o *Options) interactive() bool { return len(o.Command) == 0 || shells[path.Base(o.Command[0])] }

// single returns this process's streams.
func (l *runner) single() streams {
	t := l.terminal
	t.Start()
	s := streams{in: t.In, out: l.opt.Stdout, err: l.opt.Stderr, tty: t.TTY, end: func() {}}
	if t.TTY {
		s.size, s.resize = t.Size(), t.Resize
	}
	return s
}
