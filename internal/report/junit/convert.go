package junit

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"regexp"
	"strings"

	"vnic.dev/vnic/internal/job/selftest/ktap"
)

// Bounds of what Convert keeps of the output.
const (
	MaxCases  = 4096     // tests of a guest, and as many Go packages; cases for tests that did not run are not counted
	MaxOutput = 64 << 10 // bytes kept of the end of a longer output; at most twice as many
	MaxGuests = 64       // the lines of further guests are left out
	maxLine   = 1 << 20  // bytes; the rest of a longer line is left out
)

// Convert reads results from the output of a program, in the format of `go test -json`, TAP or KTAP; output in another
// format makes one case, which fails if status is not 0. Lines that begin with "[N] ", as vnic boot prints for several
// guests, belong to guest N. name is the program's name, and status its exit status: if it is not 0 and the output
// shows no failure, Convert adds a failed case.
func Convert(r io.Reader, name string, status int) (*Suites, error) {
	c := converter{name: name, guests: map[string]*guest{}}
	in := bufio.NewReaderSize(r, 64<<10)
	for {
		line, err := readLine(in)
		if err == io.EOF {
			break
		}
		if err != nil {
			return nil, err
		}
		c.line(line)
	}
	all := &Suites{Name: name}
	for _, g := range c.order {
		for _, s := range g.suites(status) {
			all.Add(s)
		}
	}
	if len(all.Suites) == 0 {
		all.Add(Suite{Name: name, Cases: []Case{whole(name, status, "")}})
	}
	if status != 0 && all.Failures+all.Errors == 0 {
		all.Add(Suite{Name: name + ": exit status", Cases: []Case{whole(name, status, "")}})
	}
	return all, nil
}

func readLine(in *bufio.Reader) (line []byte, err error) {
	for {
		part, more, err := in.ReadLine()
		if err != nil {
			return line, err
		}
		if len(line) < maxLine {
			line = append(line, part[:min(len(part), maxLine-len(line))]...)
		}
		if !more {
			return line, nil
		}
	}
}

func whole(name string, status int, output string) Case {
	c := Case{Name: name, Class: name, SystemOut: output}
	if status != 0 {
		c.Failure = &Message{Message: fmt.Sprintf("the program ended with status %d", status)}
	}
	return c
}

var ofGuest = regexp.MustCompile(`^\[(\d{1,3})\] `)

type converter struct {
	name   string
	guests map[string]*guest
	order  []*guest
}

func (c *converter) line(line []byte) {
	who := ""
	if parts := ofGuest.FindSubmatch(line); parts != nil {
		who, line = string(parts[1]), line[len(parts[0]):]
	}
	g := c.guests[who]
	if g == nil {
		if len(c.order) == MaxGuests {
			return
		}
		g = &guest{name: c.name}
		if who != "" {
			g.name += ", guest" + who
		}
		c.guests[who] = g
		c.order = append(c.order, g)
	}
	g.line(line)
}

type guest struct {
	name   string
	begun  bool
	golang *goTest      // for `go test -json`; else nil
	tap    *ktap.Parser // for another format; nil also before the first line
	cases  []Case
	plain  bool
	tail   []byte // the end of the output
}

func (g *guest) line(line []byte) {
	if len(bytes.TrimSpace(line)) == 0 && !g.begun {
		return
	}
	if !g.begun {
		g.begun = true
		var e goEvent
		if json.Unmarshal(line, &e) == nil && e.Action != "" {
			g.golang = newGoTest()
		} else {
			g.tap = ktap.New(ktap.Options{}, g.event)
		}
	}
	g.tail = keepTail(append(append(g.tail, line...), '\n'))
	if g.golang != nil {
		g.golang.line(line)
		return
	}
	_, _ = g.tap.Write(append(line, '\n'))
}

// keepTail shortens an output of more than 2*MaxOutput bytes to its last MaxOutput bytes.
func keepTail(b []byte) []byte {
	if len(b) > 2*MaxOutput {
		b = append(b[:0], b[len(b)-MaxOutput:]...)
	}
	return b
}

func (g *guest) event(e ktap.Event) {
	if e.Kind != ktap.Ended || len(g.cases) >= MaxCases {
		return
	}
	c := Case{Name: e.Case.Name, Class: g.name}
	text := strings.Join(e.Case.Diagnostics, "\n")
	switch {
	case e.Case.Name != ktap.Whole:
	case e.Case.Directive != "": // the plan skips all
		c.Name = g.name
	default: // the output has no result of a case: suites makes one from the exit status
		g.plain = true
		return
	}
	why := cmp.Or(e.Case.Reason, string(e.Case.Result))
	switch e.Case.Result {
	case ktap.Pass:
		c.SystemOut = text
	case ktap.Fail:
		c.Failure = &Message{Message: why, Text: text}
	case ktap.Timeout, ktap.Error:
		c.Error = &Message{Message: why, Type: string(e.Case.Result), Text: text}
	default:
		c.Skipped, c.SystemOut = &Message{Message: why}, text
	}
	g.cases = append(g.cases, c)
}

// suites is called after the last line, and returns the guest's suites. status is the program's exit status.
func (g *guest) suites(status int) []Suite {
	if g.golang != nil {
		return g.golang.suites(g.name)
	}
	if g.tap == nil {
		return nil
	}
	end := g.tap.End(ktap.Exit{Status: status})
	s := Suite{Name: g.name, Cases: g.cases, SystemOut: strings.Join(end.Diagnostics, "\n")}
	if g.plain {
		s.Cases, s.SystemOut = []Case{whole(g.name, status, string(g.tail))}, ""
	}
	for _, n := range end.NotRun {
		s.Cases = append(s.Cases, Case{Name: n.Name, Class: g.name,
			Error: &Message{Message: "it was announced and did not run"}})
	}
	return []Suite{s}
}
