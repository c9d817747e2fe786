package junit

import (
	"encoding/json"
	"strings"
)

// goEvent is a line of `go test -json` (go doc test2json).
type goEvent struct {
	Action      string
	Package     string
	ImportPath  string
	Test        string
	Elapsed     float64
	Output      string
	FailedBuild string
}

// goTest is what comes of these lines.
type goTest struct {
	packages map[string]*goPackage
	order    []*goPackage
	cases    int
	build    map[string][]byte // what a compiler said, by import path
}

type goPackage struct {
	name    string
	seconds float64
	failed  bool
	built   string // the build that failed
	output  []byte
	tests   map[string]*goCase
	order   []*goCase
}

type goCase struct {
	name    string
	action  string // that ended it; "": nothing did
	seconds float64
	output  []byte
}

func newGoTest() *goTest {
	return &goTest{packages: map[string]*goPackage{}, build: map[string][]byte{}}
}

// line takes one. What is none is the output of nobody.
func (g *goTest) line(b []byte) {
	var e goEvent
	if json.Unmarshal(b, &e) != nil {
		return
	}
	if e.Package == "" {
		if e.Action == "build-output" && (g.build[e.ImportPath] != nil || len(g.build) < MaxGuests) {
			g.build[e.ImportPath] = keepTail(append(g.build[e.ImportPath], e.Output...))
		}
		return
	}
	p := g.packages[e.Package]
	if p == nil {
		if len(g.order) == MaxCases {
			return
		}
		p = &goPackage{name: e.Package, tests: map[string]*goCase{}}
		g.packages[e.Package] = p
		g.order = append(g.order, p)
	}
	if e.Test == "" {
		switch e.Action {
		case "output":
			p.output = keepTail(append(p.output, e.Output...))
		case "fail":
			p.failed, p.seconds, p.built = true, e.Elapsed, e.FailedBuild
		case "pass", "skip":
			p.seconds = e.Elapsed
		}
		return
	}
	c := p.tests[e.Test]
	if c == nil {
		if g.cases == MaxCases {
			return
		}
		g.cases++
		c = &goCase{name: e.Test}
		p.tests[e.Test] = c
		p.order = append(p.order, c)
	}
	switch e.Action {
	case "output":
		c.output = keepTail(append(c.output, e.Output...))
	case "pass", "fail", "skip":
		c.action, c.seconds = e.Action, e.Elapsed
	}
}

// suites gives one for each package.
func (g *goTest) suites(booted *guest) (list []Suite) {
	for _, p := range g.order {
		s := Suite{Name: p.name, Time: Seconds(p.seconds)}
		if booted.name != "" {
			s.Name = p.name + " (" + booted.name + ")"
		}
		booted.seconds += p.seconds
		bad := false
		for _, c := range p.order {
			t := Case{Name: c.name, Class: p.name, Time: Seconds(c.seconds)}
			switch c.action {
			case "pass":
			case "skip":
				t.Skipped = &Message{Message: reason(c.output), Text: string(c.output)}
			case "fail":
				t.Failure = &Message{Message: reason(c.output), Text: string(c.output)}
				bad = true
			default:
				t.Error = &Message{Message: "it has not ended", Text: string(c.output)}
				bad = true
			}
			s.Cases = append(s.Cases, t)
		}
		if p.failed && !bad {
			text := append(g.build[p.built], p.output...)
			s.Cases = append(s.Cases, Case{Name: "package", Class: p.name, Time: Seconds(0),
				Error: &Message{Message: reason(text), Text: string(text)}})
		}
		list = append(list, s)
	}
	return list
}

// reason is the first line of an output that says something.
func reason(output []byte) string {
	for line := range strings.Lines(string(output)) {
		line = strings.TrimSpace(line)
		if line != "" && !strings.HasPrefix(line, "=== ") && !strings.HasPrefix(line, "--- ") &&
			!strings.HasPrefix(line, "# ") {
			return line
		}
	}
	return "failed"
}
