package ktap

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"vnic.dev/vnic/internal/golden"
	"vnic.dev/vnic/internal/testkit"
)

// parse gives text to a Parser in pieces of so many bytes (0: 1), then exit, and returns what the Parser emits.
func parse(opts Options, text []byte, piece int, exit Exit) (events []Event, s Summary) {
	p := New(opts, func(e Event) { events = append(events, e) })
	for b := range slices.Chunk(text, max(1, piece)) {
		p.Write(b)
	}
	s = p.End(exit)
	return events, s
}

func (c Case) describe(indent string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d %q %s", c.Number, c.Name, c.Result)
	if c.Directive != "" {
		fmt.Fprintf(&b, ", directive %s", c.Directive)
	}
	if c.Reason != "" {
		fmt.Fprintf(&b, ": %s", c.Reason)
	}
	fmt.Fprintln(&b)
	for _, d := range c.Diagnostics {
		fmt.Fprintf(&b, "%s  | %s\n", indent, d)
	}
	if c.Dropped > 0 {
		fmt.Fprintf(&b, "%s  %d lines more\n", indent, c.Dropped)
	}
	for _, sub := range c.Subtests {
		fmt.Fprintf(&b, "%s  subtest %s", indent, sub.describe(indent+"  "))
	}
	return b.String()
}

func describe(events []Event, s Summary) string {
	var b strings.Builder
	for _, e := range events {
		switch e.Kind {
		case Planned:
			fmt.Fprintf(&b, "planned %d\n", e.N)
		case Begun:
			fmt.Fprintf(&b, "begun %d %q\n", e.Case.Number, e.Case.Name)
		case Ended:
			fmt.Fprintf(&b, "ended %s", e.Case.describe(""))
		case Continued:
			fmt.Fprintf(&b, "continued: %s\n", e.Line)
		case Counted:
			fmt.Fprintf(&b, "counted %+v\n", e.Totals)
		case BailedOut:
			fmt.Fprintf(&b, "bailed out: %s\n", e.Line)
		}
	}
	fmt.Fprintf(&b, "at the end: planned %d\n", s.Planned)
	for _, c := range s.NotRun {
		fmt.Fprintf(&b, "not run: %d %q\n", c.Number, c.Name)
	}
	for _, t := range s.Troubles {
		fmt.Fprintf(&b, "trouble: %s\n", t)
	}
	for _, d := range s.Diagnostics {
		fmt.Fprintf(&b, "| %s\n", d)
	}
	return b.String()
}

// exits has how programs of testdata ended; the other programs ended with status 0.
var exits = map[string]Exit{
	"demo":      {Status: 1},
	"killed":    {Status: 1, TimedOut: true},
	"dead":      {Lost: "the guest's kernel has panicked"},
	"cprogram":  {Status: 1},
	"bailout":   {Status: 1},
	"skipall":   {Status: 4},
	"noynl":     {Status: 4},
	"traceback": {Status: 1},
	"colour":    {Status: 1},
	"nested":    {Status: 1},
}

// Events and Summary do not depend on the pieces in which output comes. demo and killed are output of Linux 7.2's
// ksft.py.
func TestOutputBecomesEvents(t *testing.T) {
	got := map[string]string{}
	for _, path := range testkit.Must(filepath.Glob("testdata/*.ktap"))(t) {
		name := strings.TrimSuffix(filepath.Base(path), ".ktap")
		text := testkit.Must(os.ReadFile(path))(t)
		opts := Options{Program: name}
		if name == "dead" {
			opts.Names = []string{"one", "two", "three"}
		}
		got[name] = describe(parse(opts, text, len(text), exits[name]))
		for _, piece := range []int{1, 2, 7} {
			testkit.Equal(t, fmt.Sprintf("%s in pieces of %d", name, piece),
				describe(parse(opts, text, piece, exits[name])), got[name])
		}
	}
	golden.Check(t, "testdata/golden", got)
}

// The exit status decides the result of a program without KTAP (kselftest.h, "exit codes"), unless it took too long or
// has none.
func TestExitStatusIsTheResultOfAProgramWithoutKTAP(t *testing.T) {
	for _, c := range []struct {
		exit   Exit
		result Result
		reason string
	}{
		{Exit{}, Pass, ""},
		{Exit{Status: 1}, Fail, "the program ended with status 1"},
		{Exit{Status: 2}, XFail, "the program ended with status 2"},
		{Exit{Status: 3}, Pass, ""},
		{Exit{Status: 4}, Skip, "the program ended with status 4"},
		{Exit{Status: 124}, Timeout, "the program ended with status 124"},
		{Exit{Status: 139}, Fail, "the program ended by signal 11"},
		{Exit{Status: 0, TimedOut: true}, Timeout, "the program took too long"},
		{Exit{Lost: "the guest's kernel has panicked"}, Error, "the guest's kernel has panicked"},
	} {
		events, s := parse(Options{}, []byte("hello\n"), 100, c.exit)
		if len(events) != 1 || events[0].Kind != Ended || len(s.Troubles) != 0 {
			t.Errorf("%+v: %s", c.exit, describe(events, s))
			continue
		}
		got := events[0].Case
		if got.Name != Whole || got.Result != c.result || got.Reason != c.reason ||
			!slices.Equal(got.Diagnostics, []string{"hello"}) {
			t.Errorf("%+v: %s", c.exit, got.describe(""))
		}
	}
}

func TestExitStatusAndCasesAreCompared(t *testing.T) {
	for _, c := range []struct {
		text    string
		exit    Exit
		trouble string
	}{
		{"TAP version 13\n1..1\nok 1 a\n", Exit{}, ""},
		{"TAP version 13\n1..1\nok 1 a\n", Exit{Status: 1}, "the program ended with status 1, though no case failed"},
		{"TAP version 13\n1..1\nnot ok 1 a\n", Exit{Status: 1}, ""},
		{"TAP version 13\n1..1\nnot ok 1 a\n", Exit{}, "exit status 0, though a case failed"},
		{"TAP version 13\n1..1\nok 1 a # SKIP x\n", Exit{Status: 4}, ""},
		{"TAP version 13\n1..1\nok 1 a\n", Exit{TimedOut: true}, "after the last case: the program took too long"},
		{"TAP version 13\n", Exit{Status: 1}, "neither a plan nor a result: the program ended with status 1"},
		{"TAP version 13\n1..1\nok 1 a\n# Totals: pass:0 fail:1 xfail:0 xpass:0 skip:0 error:0\n", Exit{}, "its totals are "},
	} {
		events, s := parse(Options{}, []byte(c.text), 100, c.exit)
		if c.trouble == "" && len(s.Troubles) > 0 || c.trouble != "" && (len(s.Troubles) == 0 ||
			!strings.HasPrefix(s.Troubles[0], c.trouble)) {
			t.Errorf("%q, %+v: not %q: %s", c.text, c.exit, c.trouble, describe(events, s))
		}
	}
}

func TestResultLines(t *testing.T) {
	for line, want := range map[string]resultLine{
		"ok 1":                         {ok: true, number: 1},
		"ok 1 a b":                     {ok: true, number: 1, name: "a b"},
		"not ok 12 a#b":                {number: 12, name: "a#b"},
		"ok 1 a # SKIP":                {ok: true, number: 1, name: "a", directive: "SKIP"},
		"ok 1 a # skip: why":           {ok: true, number: 1, name: "a", directive: "SKIP", text: "why"},
		"ok 1 a # SKIPPED why":         {ok: true, number: 1, name: "a", text: "SKIPPED why"},
		"ok 1 a #  said":               {ok: true, number: 1, name: "a", text: "said"},
		"ok 1 a # SKIP b # c":          {ok: true, number: 1, name: "a", directive: "SKIP", text: "b # c"},
		"ok 2 # XFAIL known":           {ok: true, number: 2, directive: "XFAIL", text: "known"},
		"not ok 3 # error mmap (12)":   {number: 3, directive: "ERROR", text: "mmap (12)"},
		"ok 5 check # rcode=0":         {ok: true, number: 5, name: "check", text: "rcode=0"},
		"ok 1 - tap # TODO some day":   {ok: true, number: 1, name: "tap", directive: "TODO", text: "some day"},
		"not ok 1 demo.test.sw_ipv4_a": {number: 1, name: "demo.test.sw_ipv4_a"},
	} {
		if got, found := parseResult(line); !found || got != want {
			t.Errorf("%q: %t %+v, not %+v", line, found, got, want)
		}
	}
	for _, line := range []string{"", "ok", "ok ", "ok a", "ok 1a", "okay 1 a", "not ok", "no ok 1", "not  ok 1",
		"ok -1 a", "Ok 1", "ok 99999999999999999999"} {
		if got, found := parseResult(line); found {
			t.Errorf("%q is a result line: %+v", line, got)
		}
	}
}

func TestDirectives(t *testing.T) {
	for _, c := range []struct {
		directive  string
		ok, failed Result
	}{
		{"", Pass, Fail}, {"SKIP", Skip, Skip}, {"XFAIL", XFail, XFail}, {"TODO", Pass, XFail}, {"XPASS", Pass, Fail},
		{"TIMEOUT", Timeout, Timeout}, {"ERROR", Error, Error}, {"OTHER", Pass, Fail},
	} {
		testkit.Equal(t, "ok, "+c.directive, ofLine(true, c.directive), c.ok)
		testkit.Equal(t, "not ok, "+c.directive, ofLine(false, c.directive), c.failed)
	}
}

// Invariant: selftest: The output kept from a guest is bounded, however much the guest prints.
func TestOutputIsKeptWithinBounds(t *testing.T) {
	var b bytes.Buffer
	long := strings.Repeat("x", MaxLine+100)
	longest := long
	fmt.Fprintf(&b, "TAP version 13\n1..1000000\n# first\n")
	for i := range 1000 {
		fmt.Fprintf(&b, "# %d\n", i)
	}
	fmt.Fprintf(&b, "not ok 1 noisy\n# %s\nok 2 %s # SKIP %s\n", long, long, long)
	for i := 3; i < MaxCases+10; i++ {
		if i == MaxKept/MaxLine {
			long = long[:MaxLine/8]
		}
		fmt.Fprintf(&b, "# %s\nok %d a # SKIP %s\n%s\n", long, i, long, long)
	}
	events, s := parse(Options{}, b.Bytes(), 4096, Exit{})
	size, cases := 0, 0
	for _, e := range events {
		size += len(e.Line)
		if e.Kind != Ended {
			continue
		}
		cases++
		size += len(e.Case.Name) + len(e.Case.Reason)
		for _, d := range e.Case.Diagnostics {
			size += len(d)
		}
	}
	if size > MaxKept+4*maxName*MaxCases {
		t.Errorf("%d bytes are kept", size)
	}
	testkit.Equal(t, "cases", cases, MaxCases)
	i := slices.IndexFunc(events, func(e Event) bool { return e.Kind == Ended })
	first := events[i].Case
	testkit.Equal(t, "lines of the noisy case", len(first.Diagnostics), MaxDiagnostics)
	testkit.Equal(t, "its first", first.Diagnostics[0], "first")
	testkit.Equal(t, "its last", first.Diagnostics[MaxDiagnostics-1], "999")
	testkit.Equal(t, "the first line after the gap", first.Diagnostics[keepFirst], fmt.Sprint(1000-keepLast))
	testkit.Equal(t, "its dropped lines", first.Dropped, 1001-MaxDiagnostics)
	second := events[slices.IndexFunc(events, func(e Event) bool { return e.Kind == Ended && e.Case.Number == 2 })].Case
	testkit.Equal(t, "a long line", second.Diagnostics[0], longest[:MaxLine-2]+" [...]")
	if len(s.Troubles) == 0 || !strings.Contains(s.Troubles[0], "a plan of 1000000 cases") {
		t.Errorf("troubles: %q", s.Troubles)
	}
}

// clean reports whether s is valid UTF-8 without control characters, format characters, U+FFFE and U+FFFF.
func clean(s string) bool {
	return utf8.ValidString(s) && !strings.ContainsFunc(s, func(c rune) bool {
		return unicode.IsControl(c) || unicode.Is(unicode.Cf, c) || c == 0xfffe || c == 0xffff
	})
}

func FuzzParser(f *testing.F) {
	for _, path := range testkit.Must(filepath.Glob("testdata/*.ktap"))(f) {
		f.Add(testkit.Must(os.ReadFile(path))(f), uint8(7), 1, false)
	}
	f.Fuzz(func(t *testing.T, text []byte, piece uint8, status int, timedOut bool) {
		exit := Exit{Status: status, TimedOut: timedOut}
		opts := Options{Program: "demo", Names: []string{"passes", "checks"}}
		events, s := parse(opts, text, len(text), exit)
		whole := describe(events, s)
		if cut := describe(parse(opts, text, int(piece), exit)); cut != whole {
			t.Errorf("in pieces of %d:\n%s\nnot\n%s", piece, cut, whole)
		}
		if len(s.Troubles) > maxTroubles {
			t.Errorf("%d troubles", len(s.Troubles))
		}
		ended := map[int]bool{}
		var check func(c *Case)
		check = func(c *Case) {
			if !clean(c.Name) || !clean(c.Reason) || !slices.Contains(Results, c.Result) {
				t.Errorf("%+v", c)
			}
			if len(c.Diagnostics) > MaxDiagnostics*MaxDepth || !clean(strings.Join(c.Diagnostics, "")) {
				t.Errorf("diagnostics of %q: %q", c.Name, c.Diagnostics)
			}
			for i := range c.Subtests {
				check(&c.Subtests[i])
			}
		}
		for _, e := range events {
			if e.Kind == Ended {
				ended[e.Case.Number] = true
				check(&e.Case)
			}
		}
		for _, c := range s.NotRun {
			if ended[c.Number] {
				t.Errorf("case %d has ended, and was not run", c.Number)
			}
			ended[c.Number] = true
		}
		if s.Planned > 0 && len(ended) < s.Planned {
			t.Errorf("%d of %d planned cases are accounted for", len(ended), s.Planned)
		}
	})
}
