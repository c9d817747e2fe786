package ktap

import (
	"bytes"
	"slices"
)

// lines holds the diagnostics of one case at a level: the first keepFirst lines, and the last keepLast of the others.
type lines struct {
	first, last []string
	dropped     int
}

const (
	keepFirst = MaxDiagnostics / 4
	keepLast  = MaxDiagnostics - keepFirst
)

// add keeps a line. If this drops another one, add returns the dropped line's size, else 0.
func (l *lines) add(s string) (freed int) {
	if len(l.first) < keepFirst {
		l.first = append(l.first, s)
		return 0
	}
	if len(l.last) == keepLast {
		freed = len(l.last[0])
		l.last = slices.Delete(l.last, 0, 1)
		l.dropped++
	}
	l.last = append(l.last, s)
	return freed
}

// take returns the kept lines and the number of dropped ones, and empties l.
func (l *lines) take() (all []string, dropped int) {
	all, dropped = slices.Concat(l.first, l.last), l.dropped
	*l = lines{}
	return all, dropped
}

// Cutter cuts bytes that come in pieces of any size into lines.
type Cutter struct {
	Max  int                         // kept bytes of a line
	Line func(line []byte, cut bool) // called with each line, without newline; must not keep line; cut: longer than Max

	line []byte
	cut  bool
}

// Write takes a piece of any size. It returns no error, and does not keep b.
func (c *Cutter) Write(b []byte) (int, error) {
	n := len(b)
	for len(b) > 0 {
		part, rest, whole := bytes.Cut(b, []byte{'\n'})
		if room := c.Max - len(c.line); len(part) > room {
			part, c.cut = part[:room], true
		}
		c.line = append(c.line, part...)
		if whole {
			c.end()
		}
		b = rest
	}
	return n, nil
}

// Flush calls Line with a last line that has no newline, if there is one.
func (c *Cutter) Flush() {
	if len(c.line) > 0 {
		c.end()
	}
}

func (c *Cutter) end() {
	c.Line(c.line, c.cut)
	c.line, c.cut = c.line[:0], false
}
