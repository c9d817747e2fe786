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

type goTest struct {
	results  map[[2]string]*goResult // by package and test; the test is "" for the package
	packages []*goResult
	cases    int
	build    map[string][]byte // output of builds, by import path
}

// goResult is the result of a test, or of a package with its tests.
type goResult struct {
	name    string
	action  string // pass, fail or skip; "": it has not ended
	seconds float64
	built   string // of a package: import path of the build that failed; "": none
	output  []byte
	tests   []*goResult
}

func newGoTest() *goTest {
	return &goTest{results: map[[2]string]*goResult{}, build: map[string][]byte{}}
}

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
	r := g.result(e.Package, e.Test)
	switch {
	case r == nil:
	case e.Action == "output":
		r.output = keepTail(append(r.output, e.Output...))
	case e.Action == "pass" || e.Action == "fail" || e.Action == "skip":
		r.action, r.seconds, r.built = e.Action, e.Elapsed, e.FailedBuild
	}
}

// result returns the result of a test, or of a package if test is "", and makes it if there is none; nil: there are
// already MaxCases.
func (g *goTest) result(pkg, test string) *goResult {
	key := [2]string{pkg, test}
	if r := g.results[key]; r != nil {
		return r
	}
	if test == "" {
		if len(g.packages) == MaxCases {
			return nil
		}
		g.results[key] = &goResult{name: pkg}
		g.packages = append(g.packages, g.results[key])
		return g.results[key]
	}
	p := g.result(pkg, "")
	if p == nil || g.cases == MaxCases {
		return nil
	}
	g.cases++
	g.results[key] = &goResult{name: test}
	p.tests = append(p.tests, g.results[key])
	return g.results[key]
}

// suites returns a suite for each package, with guest in its name.
func (g *goTest) suites(guest string) (list []Suite) {
	for _, p := range g.packages {
		s := Suite{Name: p.name, Time: Seconds(p.seconds)}
		if guest != "" {
			s.Name = p.name + " (" + guest + ")"
		}
		bad := false
		for _, r := range p.tests {
			t := Case{Name: r.name, Class: p.name, Time: Seconds(r.seconds)}
			why := &Message{Message: reason(r.output), Text: string(r.output)}
			switch r.action {
			case "pass":
			case "skip":
				t.Skipped = why
			case "fail":
				t.Failure = why
			default:
				why.Message = "it has not ended"
				t.Error = why
			}
			bad = bad || t.Failure != nil || t.Error != nil
			s.Cases = append(s.Cases, t)
		}
		if p.action == "fail" && !bad {
			text := append(g.build[p.built], p.output...)
			s.Cases = append(s.Cases, Case{Name: "package", Class: p.name,
				Error: &Message{Message: reason(text), Text: string(text)}})
		}
		list = append(list, s)
	}
	return list
}

// reason returns the first line of an output that is neither empty nor a heading of go test or of the compiler,
// or "failed".
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
