package expect

import (
	"strings"
	"testing"

	"vnic.dev/vnic/internal/testkit"
)

func suite() *Suite {
	return &Suite{Kernel: "7.2", Patches: map[string]Patch{"combined-channels": {}},
		Programs: map[string][]string{"a.py": {"one", "two", "test.x_1", "test.x_2"}, "whole.py": {"one"}, "psp.py": nil}}
}

const sound = `model: gve
kernel: "7.2"
programs:
  a.py:
    unmodified:
      seen: 2/1/1
      from: run
      cases:
        - {case: one, expect: pass}
        - {case: two, expect: fail, class: driver, evidence: "drivers/net/x.c:12", text: why}
        - {case: "test.x_[1]", expect: skip, class: setup, evidence: "--mtu 9000", text: why}
        - {case: "*", expect: pass}
    patched:
      cases:
        - {case: one, expect: xfail, text: the author says so}
        - {case: two, expect: left-out, class: kernel, evidence: A heading, text: why, splat: f}
        - {case: "*", expect: fail, class: test, evidence: combined-channels, text: why}
  whole.py:
    unmodified:
      cases:
        - {case: (program), expect: fail, class: setup, evidence: bpftrace, text: why}
`

// Parse reports each of these mistakes in a file that is otherwise sound; "not covered" is no mistake.
func TestMistakesAreSaid(t *testing.T) {
	if _, err := Parse("f", []byte(sound), suite(), []string{"A heading"}); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct{ old, new, says string }{
		"model":       {"model: gve", "model: ''", "model: there is none"},
		"kernel":      {`kernel: "7.2"`, `kernel: "7.3"`, `"7.3", but its suite is of "7.2"`},
		"program":     {"  a.py:", "  b.py:", "kernel 7.2 has no such program: a.py is meant?"},
		"column":      {"    patched:", "    changed:", "there is no such column: unmodified and patched are"},
		"field":       {"text: why}", "because: why}", "unknown field"},
		"result":      {"one, expect: pass", "one, expect: good", `expect: "good" is no result`},
		"class":       {"class: driver", "class: firmware", `class: "firmware" is none`},
		"flaky":       {"class: driver", "class: flaky", "flaky is none: find out what makes it fail at times"},
		"ours":        {"class: driver", "class: ours", "what is ours is not expected"},
		"no class":    {"class: driver, ", "", "class: there is none: it is one of driver, test, setup, kernel"},
		"no evidence": {`evidence: "drivers/net/x.c:12", `, "", "class driver wants FILE:LINE of kernel 7.2"},
		"no line":     {"x.c:12", "x.c", `"drivers/net/x.c" is not FILE:LINE`},
		"line 0":      {"x.c:12", "x.c:0", "is not FILE:LINE"},
		"no setup":    {`evidence: "--mtu 9000", `, "", "class setup wants what is to be changed"},
		"no patch":    {"evidence: combined-channels", "evidence: combined-chanels", "combined-channels is meant?"},
		"no test's":   {"evidence: combined-channels, ", "", "class test wants a patch of the suite"},
		"patched fails": {`class: driver, evidence: "drivers/net/x.c:12"`, "class: test, evidence: combined-channels",
			"two: class test, but with the patch it is left-out as well"},
		"not patched": {"class: setup, evidence: bpftrace", "class: test, evidence: combined-channels",
			"(program): class test, but nothing is expected of it with the patch"},
		"no heading":     {"evidence: A heading", "evidence: A headin", `no heading "A headin": A heading is meant?`},
		"no kernel's":    {"evidence: A heading, ", "", "class kernel wants a heading of docs/found.md"},
		"no text":        {"evidence: bpftrace, text: why", "evidence: bpftrace", "text: there is none"},
		"pass with why":  {"one, expect: pass", "one, expect: pass, class: driver", "neither class nor evidence"},
		"pattern":        {`"test.x_[1]"`, `"test.x_["`, "it is no pattern"},
		"no pattern":     {`"test.x_[1]"`, `""`, "it is no pattern"},
		"matches none":   {`"test.x_[1]"`, `"test.y_*"`, "it matches no case that no entry before it matches"},
		"meant":          {"case: two, expect: fail", "case: tow, expect: fail", ": two is meant?"},
		"never first":    {"case: one, expect: pass", `case: "*", expect: pass`, `case "two": it matches no case`},
		"not covered":    {`case: "*", expect: pass`, "case: test.x_2, expect: pass", ""},
		"uncovered":      {`        - {case: "*", expect: pass}` + "\n", "", "nothing is expected of case test.x_2"},
		"seen":           {"seen: 2/1/1", "seen: 3/1/0", "seen: 3/1/0, but what is expected of its cases adds up to 2/1/1"},
		"not seen":       {"      seen: 2/1/1\n", "", "what comes from a run has its counts"},
		"from":           {"from: run", "from: hearsay", `from: "hearsay" is neither run nor source`},
		"from, of entry": {"test.x_[1]\", ", "test.x_[1]\", from: rumour, ", `from: "rumour" is neither`},
		"syntax":         {"programs:", "programs: [", ""},
		"too large":      {"model: gve", "model: gve #" + strings.Repeat("x", MaxSize), "it may have 1048576"},
	} {
		text := strings.Replace(sound, c.old, c.new, 1)
		if text == sound {
			t.Errorf("%s: nothing is replaced", name)
		}
		_, err := Parse("f", []byte(text), suite(), []string{"A heading"})
		if name == "not covered" {
			testkit.OK(t, err) // entries for each case do as well as one for "*"
			continue
		}
		if err == nil || !strings.HasPrefix(err.Error(), "f: ") || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v, not %q", name, err, c.says)
		}
	}
}

func TestAllMistakesAreSaid(t *testing.T) {
	text := strings.ReplaceAll(sound, "text: why", "text: ' '")
	_, err := Parse("f.yaml", []byte(text), suite(), nil)
	if err == nil || strings.Count(err.Error(), "f.yaml: ") != 5 {
		t.Errorf("%v", err)
	}
}

func TestMistakesInASuiteAreSaid(t *testing.T) {
	good := "kernel: \"7.2\"\npatches: {p: {does: what, numbers: [1]}}\nprograms:\n  a.py: [one, two]\n"
	if _, err := ParseSuite("s", []byte(good)); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ old, new, says string }{
		{"7.2", "7.2.12", `"7.2.12" is no series`}, {"7.2", "", "is no series"},
		{"one, two", "one, one", "a.py: case one is listed twice"}, {"one, two", `"*"`, `"*" is no name of a case`},
		{"one, two", "(program)", "is no name of a case"}, {"programs", "prgrams", "unknown field"},
	} {
		if _, err := ParseSuite("s", []byte(strings.Replace(good, c.old, c.new, 1))); err == nil ||
			!strings.Contains(err.Error(), c.says) {
			t.Errorf("%q: %v, not %q", c.new, err, c.says)
		}
	}
}

func TestSeries(t *testing.T) {
	for release, want := range map[string]string{
		"7.2.12+deb13-cloud-amd64": "7.2", "7.2": "7.2", "7.10.1": "7.10", "7.3-rc1": "7.3", "": "", "7": "", "next.1": "",
		"7.": "", ".2": "", "../7.2": "",
	} {
		testkit.Equal(t, release, Series(release), want)
	}
}
