package selftests

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"vnic.dev/vnic/internal/testkit"
)

// Formats of this series' names and subjects, of git-format-patch(1), and of unified diffs (diffutils, "Detailed
// Unified").
var (
	patchName    = regexp.MustCompile(`^\d{4}-selftests-[\w-]+\.patch$`)
	patchFrom    = regexp.MustCompile(`^From [0-9a-f]{40} Mon Sep 17 00:00:00 2001$`)
	patchSubject = regexp.MustCompile(`^Subject: \[PATCH net-next\] selftests: (drv-net|net): \S`)
	patchDiff    = regexp.MustCompile(`^diff --git a/(\S+) b/(\S+)$`)
	patchHunk    = regexp.MustCompile(`^@@ -\d+(?:,(\d+))? \+\d+(?:,(\d+))? @@`)
	signedOff    = regexp.MustCompile(`(?m)^(Signed-off-by|Co-developed-by):`)
)

// badPatch returns an error if a patch has a wrong format, is signed off, or has a message that is too short or wide.
func badPatch(p Patch) error {
	if !patchName.MatchString(p.Name) {
		return errors.New("its name is not as git gives it")
	}
	head, diff, found := strings.Cut(string(p.Text), "\n---\n")
	if !found {
		return errors.New("no line of three dashes behind the message")
	}
	if signedOff.MatchString(head) {
		return errors.New("it is signed off: that is for those who send it")
	}
	header, message, _ := strings.Cut(head, "\n\n")
	lines := strings.Split(header, "\n")
	switch {
	case len(lines) < 4 || !patchFrom.MatchString(lines[0]):
		return errors.New("no header of git's")
	case !strings.HasPrefix(lines[1], "From: ") || !strings.HasPrefix(lines[2], "Date: "):
		return errors.New("no author or no date")
	case !patchSubject.MatchString(lines[3]):
		return fmt.Errorf("the subject is not that of a patch of the driver tests: %s", lines[3])
	case len(strings.Fields(message)) < 20:
		return errors.New("the message explains nothing")
	}
	for line := range strings.Lines(message) {
		if len(line) > 76 {
			return fmt.Errorf("a line of the message is longer than 75 columns: %s", line)
		}
	}
	return badDiff(diff)
}

func badDiff(diff string) error {
	var file string
	var from, to int // remaining lines of the hunk, old and new
	files, hunks := 0, 0
	for _, line := range strings.Split(strings.TrimSuffix(diff, "\n"), "\n") {
		if from > 0 || to > 0 {
			switch {
			case strings.HasPrefix(line, " "):
				from, to = from-1, to-1
			case strings.HasPrefix(line, "-"):
				from--
			case strings.HasPrefix(line, "+"):
				to--
			case strings.HasPrefix(line, `\`): // "No newline at end of file"
			default:
				return fmt.Errorf("%s: in a hunk: %q", file, line)
			}
			continue
		}
		if m := patchDiff.FindStringSubmatch(line); m != nil {
			files++
			if file = m[1]; m[2] != file {
				return fmt.Errorf("%s is renamed to %s", file, m[2])
			}
			if !strings.HasPrefix(file, selftestsDir+"/") || strings.Contains(file, "..") {
				return fmt.Errorf("%s is not one of the tests", file)
			}
			continue
		}
		if m := patchHunk.FindStringSubmatch(line); m != nil {
			hunks++
			from, to = count(m[1]), count(m[2])
			continue
		}
		old, isOld := strings.CutPrefix(line, "--- ")
		if isOld && old != "/dev/null" && old != "a/"+file {
			return fmt.Errorf("%s: the changes are of %s", file, old)
		}
		if made, isNew := strings.CutPrefix(line, "+++ "); isNew && made != "b/"+file {
			return fmt.Errorf("%s: the changes lead to %s", file, made)
		}
	}
	switch {
	case from != 0 || to != 0:
		return fmt.Errorf("%s: the last hunk is cut short: %d and %d lines", file, from, to)
	case files == 0 || hunks == 0:
		return errors.New("it changes nothing")
	}
	return nil
}

// count parses the number of lines in a hunk's head; none means 1.
func count(text string) int {
	n, err := strconv.Atoi(text)
	if err != nil {
		return 1
	}
	return n
}

// Invariant: selftest: the patches of the kernel's tests have the format for submission, and change
// only tests.
func TestPatchesCanBeSent(t *testing.T) {
	if len(patches) == 0 {
		t.Fatal("there are no patches")
	}
	for i, p := range patches {
		if err := badPatch(p); err != nil {
			t.Errorf("%s: %v", p.Name, err)
		}
		if want := fmt.Sprintf("%04d-", i+1); !strings.HasPrefix(p.Name, want) {
			t.Errorf("%s: after %d patches the next one is %s...", p.Name, i, want)
		}
		for _, text := range p.Rebased {
			if err := badPatch(Patch{Name: p.Name, Text: text}); err != nil {
				t.Errorf("%s, rebased: %v", p.Name, err)
			}
		}
	}
	if rebased := testkit.Must(filepath.Glob("patches/*/*"))(t); len(rebased) != rebasedOf(patches) {
		t.Errorf("%d files in folders, and %d patches are rebased: they have the name of one of the series", len(rebased),
			rebasedOf(patches))
	}
}

func rebasedOf(s patchSeries) (n int) {
	for _, p := range s {
		n += len(p.Rebased)
	}
	return n
}

// fakePatch returns a directory of tools with a patch(1) that applies changes of one line, and exits with status if a
// change does not apply.
func fakePatch(t *testing.T, status int) (tools string) {
	t.Helper()
	tools = t.TempDir()
	write(t, filepath.Join(tools, "usr/bin/patch"), fmt.Sprintf(`#!/bin/sh
dry=
for arg; do
  case $arg in --dry-run) dry=1 ;; esac
done
f=$(sed -n 's/^+++ b.//p' "$arg")
[ "$(sed -n 's/^-\([^-]\)/\1/p' "$arg")" = "$(cat "$f")" ] || exit %d
[ -n "$dry" ] || sed -n 's/^+\([^+]\)/\1/p' "$arg" > "$f"
`, status), 0o755)
	return tools
}

func oneLine(file, was, now string) []byte {
	return fmt.Appendf(nil, "--- a/%s\n+++ b/%s\n@@ -1,1 +1,1 @@\n-%s\n+%s\n", file, file, was, now)
}

// The version of a patch that applies is applied.
func TestThePatchThatAppliesIsApplied(t *testing.T) {
	tools := fakePatch(t, 1)
	s := patchSeries{{Name: "0001-x.patch", Text: oneLine("f", "old", "new"),
		Rebased: [][]byte{oneLine("f", "other", "changed")}}}
	for was, want := range map[string]string{"old\n": "new\n", "other\n": "changed\n", "third\n": ""} {
		dir := t.TempDir()
		f := filepath.Join(dir, "f")
		write(t, f, was, 0o644)
		left, err := s.apply(t.Context(), tools, dir)
		testkit.OK(t, err)
		if want == "" {
			testkit.Equal(t, "left", fmt.Sprint(left), "[0001-x.patch]")
			want = was
		} else {
			testkit.Equal(t, "left", len(left), 0)
		}
		testkit.Equal(t, "the file", string(testkit.Must(os.ReadFile(f))(t)), want)
	}
	// a patch program that fails, or is missing
	dir := t.TempDir()
	write(t, filepath.Join(dir, "f"), "third\n", 0o644)
	if left, err := s.apply(t.Context(), fakePatch(t, 2), dir); err == nil {
		t.Errorf("with trouble of patch's own: %v", left)
	}
	if left, err := s.apply(t.Context(), t.TempDir(), dir); err == nil {
		t.Errorf("without patch: %v", left)
	}
}

// Patches that use a helper of a patch that does not apply are left out, too.
func TestPatchesThatDoNotApplyAreLeft(t *testing.T) {
	s := patchSeries{
		{Name: "1", Text: oneLine("lib", "lib", "    from .helper import helper")},
		{Name: "2", Text: oneLine("a", "a", "helper()")},
		{Name: "3", Text: oneLine("b", "b", "changed")},
		{Name: "4", Text: oneLine("c", "c", "changed")},
	}
	for name, c := range map[string]struct{ lib, b, left string }{
		"all apply":    {"lib", "b", ""},
		"one does not": {"lib", "other", "3"},
		"the helper":   {"other", "b", "1 2"},
	} {
		dir := t.TempDir()
		for f, text := range map[string]string{"lib": c.lib, "a": "a", "b": c.b, "c": "c"} {
			write(t, filepath.Join(dir, f), text+"\n", 0o644)
		}
		left := testkit.Must(s.apply(t.Context(), fakePatch(t, 1), dir))(t)
		testkit.Equal(t, name, strings.Join(left, " "), c.left)
		testkit.Equal(t, name+", the last", string(testkit.Must(os.ReadFile(filepath.Join(dir, "c")))(t)), "changed\n")
	}
	// between the embedded patches
	needs := func(i, other int) bool { return patches[i-1].needs(&patches[other-1]) }
	for _, c := range []struct {
		patch, other int
		want         bool
	}{{2, 1, true}, {14, 1, true}, {15, 1, true}, {16, 15, true}, {16, 14, false}, {20, 1, false}, {21, 14, false}} {
		if needs(c.patch, c.other) != c.want {
			t.Errorf("%s needs %s: %v", patches[c.patch-1].Name, patches[c.other-1].Name, !c.want)
		}
	}
}

func TestPatchesInBadFormAreNoticed(t *testing.T) {
	good := patches[1]
	replace := func(old, with string) func(*Patch) {
		return func(p *Patch) {
			if !bytes.Contains(p.Text, []byte(old)) {
				t.Fatalf("%s has no %q to replace", p.Name, old)
			}
			p.Text = bytes.Replace(p.Text, []byte(old), []byte(with), 1)
		}
	}
	for name, c := range map[string]struct {
		spoil func(*Patch)
		want  string
	}{
		"name":      {func(p *Patch) { p.Name = "ntuple.diff" }, "name"},
		"no header": {replace("From 0", "from 0"), "header"},
		"no author": {replace("\nFrom: ", "\nFor: "), "author"},
		"subject":   {replace("selftests: drv-net: ", "fix "), "subject"},
		"signed":    {replace("\n---\n", "\n\nSigned-off-by: A <a@example.org>\n---\n"), "signed"},
		"no message": {func(p *Patch) {
			head, rest, _ := bytes.Cut(p.Text, []byte("\n\n"))
			_, diff, _ := bytes.Cut(rest, []byte("\n---\n"))
			p.Text = bytes.Join([][]byte{head, []byte("\n\nWhy not\n---\n"), diff}, nil)
		}, "explains nothing"},
		"wide message": {replace("\n---\n", "\n"+strings.Repeat("wide ", 16)+"\n---\n"), "longer than 75"},
		"other file":   {replace("a/"+selftestsDir+"/", "a/"), "renamed"},
		"no test": {func(p *Patch) {
			p.Text = bytes.ReplaceAll(p.Text, []byte(selftestsDir), []byte("tools/lib"))
		}, "not one of the tests"},
		"way out": {func(p *Patch) {
			p.Text = bytes.ReplaceAll(p.Text, []byte(selftestsDir), []byte(selftestsDir+"/../../.."))
		}, "not one of the tests"},
		"other changes": {replace("+++ b/", "+++ c/"), "lead to"},
		"cut short":     {func(p *Patch) { p.Text = p.Text[:bytes.LastIndex(p.Text, []byte("\n "))+1] }, "cut short"},
		"edited by hand": {func(p *Patch) {
			pos := bytes.LastIndex(p.Text, []byte("\n-"))
			p.Text = append(p.Text[:pos:pos], p.Text[pos+1+bytes.IndexByte(p.Text[pos+1:], '\n'):]...)
		}, "cut short"},
		"no changes": {func(p *Patch) { p.Text = p.Text[:bytes.Index(p.Text, []byte("diff --git"))] }, "changes nothing"},
	} {
		t.Run(name, func(t *testing.T) {
			p := Patch{Name: good.Name, Text: bytes.Clone(good.Text)}
			c.spoil(&p)
			if err := badPatch(p); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v, want an error with %q", err, c.want)
			}
		})
	}
	if err := badPatch(good); err != nil {
		t.Errorf("the same patch unspoilt: %v", err)
	}
}

func TestProgramsWithPatchesAreKnown(t *testing.T) {
	for name, want := range map[string]string{
		"drivers/net/hw/ntuple.py":    "0002 0020",
		"drivers/net/hw/nk_devmem.py": "0006 0014", // they change devmem_lib.py
		"drivers/net/hw/gro_hw.py":    "0021",
		"drivers/net/hw/csum.py":      "0022",
		"drivers/net/hw/toeplitz.py":  "", // only the library that it imports is changed
		"drivers/net/hw/ntuple":       "",
		"hw/ntuple.py":                "",
	} {
		var got []string
		for _, n := range Changing(name) {
			got = append(got, n[:4])
		}
		testkit.Equal(t, name, strings.Join(got, " "), want)
	}
	for module := range imports {
		if len(Changing(module)) == 0 {
			t.Errorf("no patch changes %s: there is no need to say who imports it", module)
		}
	}
}
