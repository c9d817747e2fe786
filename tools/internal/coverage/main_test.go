package main

import (
	"path/filepath"
	"strings"
	"testing"

	"vnic.dev/vnic/tools/internal/tree"
	"vnic.dev/vnic/tools/internal/treetest"
)

const half = `package half

func F(b bool) int {
	if b {
		return 1
	}
	b = !b
	return 2
}
`

func TestMeasure(t *testing.T) {
	dir := treetest.New(t, map[string]string{
		"go.mod":           "module " + tree.Module + "\n\ngo 1.26\n",
		"half/a.go":        half,
		"half/a_test.go":   "package half\n\nimport \"testing\"\n\nfunc TestF(*testing.T) { F(true) }\n",
		"none/a.go":        "package none\n\nfunc F() int { return 1 }\n",
		"nic/nictest/a.go": "package nictest\n\nfunc F() int { return 1 }\n",
		"test/internal/a":  "",
	})
	var out, errs strings.Builder
	if err := run([]string{dir}, &out, &errs); err != nil {
		t.Fatal(err)
	}
	if want := "half 2 4 50.00\nnone 0 1 0.00\n"; out.String() != want {
		t.Errorf("%q, want %q", out.String(), want)
	}
	out.Reset()
	if err := run([]string{"--times", "1", dir, "none"}, &out, &errs); err != nil || out.String() != "none 0 1 0.00\n" {
		t.Errorf("of one package: %q, error %v", out.String(), err)
	}
	if err := run([]string{dir, "nic/nictest"}, &out, &errs); err == nil {
		t.Error("test support is measured")
	}
	treetest.Write(t, filepath.Join(dir, "half/b_test.go"),
		"package half\n\nimport \"testing\"\n\nfunc TestG(t *testing.T) { t.Fatal(\"no\") }\n")
	out.Reset()
	err := run([]string{dir}, &out, &errs)
	if err == nil || !strings.Contains(err.Error(), "TestG") || !strings.Contains(out.String(), "none 0 1 0.00\n") {
		t.Errorf("a test that fails: error %v, %q", err, out.String())
	}
}

func TestCompare(t *testing.T) {
	for _, c := range []struct{ name, old, now, rules, wrong string }{
		{name: "equal", old: "a 5 10 50", now: "a 5 10 50"},
		{name: "better", old: "a 5 10 50", now: "a 6 10 60\nb 0 10 0"},
		{name: "hardly worse", old: "a 5000 10000 50", now: "a 4990 10000 49.9"},
		{name: "worse", old: "a 5000 10000 50", now: "a 4989 10000 49.89", wrong: "a: 49.89 %"},
		{name: "smaller, and covered as before", old: "a 50 100 50", now: "a 25 50 50"},
		{name: "smaller, without covered ones", old: "a 90 100 90", now: "a 40 50 80", wrong: "10 statements, before 10"},
		{name: "gone", old: "a 5 10 50\nb 5 10 50", now: "a 5 10 50", wrong: "b: not measured anew"},
		{name: "moved", old: "a 5 10 50", now: "b 5 10 50", rules: "package a -> b"},
		{name: "moved, worse", old: "a 5 10 50", now: "b 4 10 40", rules: "package a -> b", wrong: "a -> b: 40.00 %"},
		{name: "split", old: "a 5 10 50", now: "a 1 4 25\nb 4 6 67", rules: "package a -> a b"},
		{name: "split, worse", old: "a 5 10 50", now: "a 1 4 25\nb 3 6 50", rules: "package a -> a b",
			wrong: "a -> a b: 40.00 %"},
		{name: "joined", old: "a 9 10 90\nb 1 10 10", now: "b 10 20 50", rules: "package a -> b"},
		{name: "joined, worse", old: "a 9 10 90\nb 1 10 10", now: "b 9 20 45", rules: "package a -> b",
			wrong: "a b -> b: 45.00 %"},
		{name: "mixed", old: "a 9 10 90\nb 1 10 10\nc 1 1 100", now: "b 5 10 50\nc 2 2 100\nd 4 9 44",
			rules: "package a -> b d\npackage b -> d c"},
		{name: "rules of tests", old: "a 5 10 50", now: "a 5 10 50", rules: "test a TestX -> test b TestY"},
		{name: "nothing", old: "# none", now: "a 1 1 1", wrong: "no packages"},
		{name: "no numbers", old: "a x y", now: "a 1 1 1", wrong: "not PACKAGE"},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			args := []string{"--compare"}
			for i, text := range []string{c.old, c.now, c.rules} {
				args = append(args, filepath.Join(dir, string(rune('a'+i))))
				treetest.Write(t, args[i+1], text+"\n")
			}
			err := run(args, &strings.Builder{}, &strings.Builder{})
			if c.wrong == "" && err != nil || c.wrong != "" && (err == nil || !strings.Contains(err.Error(), c.wrong)) {
				t.Errorf("error %v, want %q", err, c.wrong)
			}
		})
	}
}
