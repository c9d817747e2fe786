package main

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"vnic.dev/vnic/tools/internal/treetest"
)

const fixture = "example.org/m"

var before = map[string]string{
	"go.mod": "module " + fixture + "\n\ngo 1.26\n",
	listFile: "a\na/b\n",
	"a/a.go": "package a\n\ntype T struct{ F int }\n\nfunc (t *T) M() {}\n\n" +
		"type I interface{ M() }\n\nconst C = 1\n\nfunc inner() {}\n",
	"a/b/b.go":      "package b\n\nimport \"example.org/m/a\"\n\nfunc New() *a.T { return nil }\n",
	"not/not.go":    "package not\n\nfunc F() {}\n",
	"CHANGELOG.md":  "# Changelog\n\n## Unreleased\n\n### Added\n\n- `a.T.F`\n",
	"broken/new.go": "package broken\n\nvar X int = \"\"\n", // not API, so it is not loaded
}

func commit(t *testing.T, dir string) string {
	t.Helper()
	for _, args := range [][]string{{"add", "-A"},
		{"-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false", "commit", "-qm", "x"}} {
		if _, err := git(dir, args...); err != nil {
			t.Fatal(err)
		}
	}
	head, err := git(dir, "rev-parse", "HEAD")
	if err != nil {
		t.Fatal(err)
	}
	return head
}

// checkout commits the files of before in a new repository, and names that commit in baseFile. It then makes changes to
// the files, without a commit: new contents by path, and "" deletes a file. It returns the repository's path.
func checkout(t *testing.T, changes map[string]string) string {
	t.Helper()
	dir := treetest.New(t, before)
	treetest.Write(t, filepath.Join(dir, baseFile), commit(t, dir)+"\n")
	for _, name := range slices.Sorted(maps.Keys(changes)) {
		if path := filepath.Join(dir, name); changes[name] != "" {
			treetest.Write(t, path, changes[name])
		} else if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func edit(file, old, new string) map[string]string {
	if !strings.Contains(before[file], old) {
		panic(old)
	}
	return map[string]string{file: strings.Replace(before[file], old, new, 1)}
}

func TestIncompatibleChangesMustBeNamed(t *testing.T) {
	for _, c := range []struct {
		what    string
		changes map[string]string
		out     string
		missing []string
	}{
		{"nothing", nil, "The API is that of ", nil},
		{"of what is not exported", edit("a/a.go", "func inner() {}", "func other() {}"), "The API is that of ", nil},
		{"of what is not API", map[string]string{"not/not.go": "package not\n"}, "The API is that of ", nil},
		{"a function more", edit("a/a.go", "func inner", "func Outer"), "Compatible changes since ", nil},
		{"a package more", map[string]string{listFile: "a\na/b\nnot\n"}, "  not: added\n", nil},
		{"a field's type", edit("a/a.go", "F int", "F string"), "  a.T.F: changed from int to string\n", []string{"a.T.F"}},
		{"a method less", edit("a/a.go", "M() {}", "m() {}"), "  a.T.M: removed\n", []string{"a.T.M"}},
		{"a method of an interface more", edit("a/a.go", "{ M() }", "{ M(); N() }"), "  a.I.N: added\n", []string{"a.I.N"}},
		{"a constant's value", edit("a/a.go", "C = 1", "C = 2"), "  a.C: value changed", []string{"a.C"}},
		{"a constant less, and another parameter",
			edit("a/a.go", "M() {}\n\ntype I interface{ M() }\n\nconst C = 1", "M(int) {}\n\ntype I interface{ M() }"),
			"  a.C: removed\n", []string{"a.C", "a.T.M"}},
		{"a result, in a package further down", edit("a/b/b.go", "*a.T { return nil }", "a.T { return a.T{} }"),
			"  a/b.New: changed from func() *", []string{"a/b.New"}},
		{"a package that is gone", map[string]string{"a/b/b.go": "", listFile: "a\n"}, "  a/b: removed", []string{"a/b"}},
		{"a package that is no longer API", map[string]string{listFile: "a\n"}, "  a/b: removed", []string{"a/b"}},
	} {
		t.Run(c.what, func(t *testing.T) {
			dir := checkout(t, c.changes)
			var out strings.Builder
			err := run([]string{dir}, fixture, &out)
			if !strings.Contains(out.String(), c.out) {
				t.Errorf("%q does not have %q", out.String(), c.out)
			}
			if c.missing == nil {
				if err != nil {
					t.Error(err)
				}
				return
			}
			list := "`" + strings.Join(c.missing, "`, `") + "`"
			if err == nil || !strings.HasSuffix(err.Error(), ": "+list) {
				t.Fatalf("%v, want %s", err, list)
			}
			treetest.Write(t, filepath.Join(dir, "CHANGELOG.md"),
				"## [Unreleased]\n\n### Incompatible\n\n- "+list+": why\n\n## v0.1\n")
			if err := run([]string{dir}, fixture, &out); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestOnlyTheSectionCounts(t *testing.T) {
	for text, want := range map[string]bool{
		"## Unreleased\n\n### Incompatible\n\n- `a.T.F` is\n  gone\n":                        true,
		"## Unreleased\n### Added\n### Incompatible\n- both\n  `a.T` and `a.T.F`\n### Fixed": true,
		"## [Unreleased]\n\n### Incompatible\n\n- `a.T.F`\n":                                 true,
		"## Unreleased\n\n### Changed\n\n- `a.T.F`\n":                                        false,
		"## Unreleased\n\n### Incompatible\n\n- a.T.F\n":                                     false,
		"## Unreleased\n\n### Incompatible\n\n- `a.T.F.G`, `a.T`\n":                          false,
		"## Unreleased\n\n### Incompatible\n\n### Fixed\n\n- `a.T.F`\n":                      false,
		"## Unreleased\n\n## v0.1\n\n### Incompatible\n\n- `a.T.F`\n":                        false,
		"### Incompatible\n\n- `a.T.F`\n":                                                    false,
		"":                                                                                   false,
	} {
		if got := named(text)["a.T.F"]; got != want {
			t.Errorf("%q: %v", text, got)
		}
	}
}

func TestMessagesAreTakenApart(t *testing.T) {
	for message, want := range map[string][2]string{
		"F: removed":                          {"F", "removed"},
		"(*T).M: changed from A: to B":        {"T.M", "changed from A: to B"},
		"T.M: added":                          {"T.M", "added"},
		"T, method set of *T: removed":        {"T", "method set of *T: removed"},
		"V.F: changed from func() to func(x)": {"V.F", "changed from func() to func(x)"},
	} {
		if name, change := identifier(message); name != want[0] || change != want[1] {
			t.Errorf("%q: %q, %q", message, name, change)
		}
	}
}

func TestBaseIsTheLastVersion(t *testing.T) {
	dir := checkout(t, edit("a/a.go", "C = 1", "C = 2"))
	first, err := git(dir, "rev-parse", "HEAD")
	if err != nil {
		t.Fatal(err)
	}
	second := commit(t, dir)
	want := func(given, commit, what string) {
		t.Helper()
		if c, w, err := baseOf(dir, given); c != commit || w != what || err != nil {
			t.Errorf("%q: %s, %s, %v; want %s, %s", given, c, w, err, commit, what)
		}
	}
	tag := func(name, commit string) {
		t.Helper()
		if _, err := git(dir, "tag", name, commit); err != nil {
			t.Fatal(err)
		}
	}
	want("", first, first)
	tag("x1", second)
	tag("very", second)
	want("", first, first)
	tag("v0.1.0", first)
	want("", first, "v0.1.0")
	tag("v0.2.0", second)
	want("", second, "v0.2.0")
	want(first, first, first)
	want("v0.1.0", first, "v0.1.0")
	var out strings.Builder
	if err := run([]string{dir}, fixture, &out); err != nil || !strings.Contains(out.String(), "that of v0.2.0") {
		t.Errorf("%v, %q", err, &out)
	}
	err = run([]string{"--base", "v0.1.0", dir}, fixture, &out)
	if err == nil || !strings.Contains(err.Error(), "`a.C`") {
		t.Errorf("%v, %q", err, &out)
	}
}

func TestWhatCannotBeComparedIsAnError(t *testing.T) {
	for want, change := range map[string]map[string]string{
		"not in this clone":         {baseFile: strings.Repeat("0123", 10)},
		"names a commit":            {baseFile: "\n"},
		baseFile + ": no such file": {baseFile: ""},
		"cannot use":                {"a/a.go": "package a\n\nvar X int = \"\"\n"},
		"names absent":              {listFile: "a\na/b\nabsent\n"},
		"CHANGELOG.md: no such":     {"CHANGELOG.md": ""},
	} {
		err := run([]string{checkout(t, change)}, fixture, &strings.Builder{})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v does not say %q", err, want)
		}
	}
	for _, args := range [][]string{{"a", "b"}, {"--bad"}} {
		if err := run(args, fixture, &strings.Builder{}); err == nil || !strings.Contains(err.Error(), "usage: ") {
			t.Errorf("%q: %v", args, err)
		}
	}
	dir := checkout(t, nil)
	treetest.Write(t, filepath.Join(dir, "a/a.go"), "package a\n\nvar X int = \"\"\n")
	bad := commit(t, dir)
	treetest.Write(t, filepath.Join(dir, "a/a.go"), before["a/a.go"])
	err := run([]string{"--base", bad, dir}, fixture, &strings.Builder{})
	if err == nil || !strings.Contains(err.Error(), "cannot use") {
		t.Errorf("%v", err)
	}
}

func TestFilesOfAReleaseHaveNothingToCompareWith(t *testing.T) {
	dir := t.TempDir()
	var out strings.Builder
	if err := run([]string{dir}, fixture, &out); err != nil || !strings.Contains(out.String(), "no git checkout") {
		t.Errorf("%v, %q", err, &out)
	}
}
