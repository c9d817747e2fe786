package boot

import (
	"fmt"
	"io"
	"sync"

	"vnic.dev/vnic/cmd/vnic/internal/terminal"
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
	t := terminal.Own(o.Stdin, o.Stdout, o.Stderr)
	s := streams{out: o.Stdout, err: o.Stderr, tty: t.TTY, size: t.Size, resize: t.Resize, close: t.Close, end: func() {}}
	if t.In != nil {
		s.in = t.In
	}
	return s
}
