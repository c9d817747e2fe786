package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"vnic.dev/vnic/tools/internal/heirs"
	"vnic.dev/vnic/tools/internal/tree"
	"vnic.dev/vnic/tools/internal/treetest"
)

// printed returns the output of ten runs of benchmarks A/x and B, which take a and b nanoseconds in the
// first run, and a thousandth more with each run. A/x allocates allocs times an operation.
func printed(a, b float64, allocs int) string {
	var text strings.Builder
	text.WriteString("pkg: dma\n")
	for i := range 10 {
		vary := 1 + float64(i)/1000
		fmt.Fprintf(&text, "BenchmarkA/x\t100\t%.3f ns/op\t50 MB/s\t0 B/op\t%d allocs/op\n", a*vary, allocs)
		fmt.Fprintf(&text, "BenchmarkB\t100\t%.3f ns/op\t16 B/op\t1 allocs/op\n", b*vary)
	}
	return text.String()
}

func TestJudge(t *testing.T) {
	for _, c := range []struct {
		name            string
		base, same, now string
		wrong           string
	}{
		{"equal", printed(100, 200, 0), printed(100, 200, 0), printed(100, 200, 0), ""},
		{"faster", printed(100, 200, 0), printed(100, 200, 0), printed(50, 100, 0), ""},
		{"hardly slower", printed(100, 200, 0), printed(100, 200, 0), printed(101.9, 203.8, 0), ""},
		{"slower", printed(100, 200, 0), printed(100, 200, 0), printed(103, 206, 0), "dma: geometric mean 1.030"},
		{"slower, within the A/A spread", printed(100, 200, 0), printed(102, 204, 0), printed(103, 206, 0), ""},
		{"slower, the base against itself faster", printed(100, 200, 0), printed(98, 196, 0), printed(103, 206, 0), ""},
		{"one slower, one faster", printed(100, 200, 0), printed(100, 200, 0), printed(111, 180, 0), "dma A/x: 1.110 times"},
		{"one slower within bounds", printed(100, 200, 0), printed(100, 200, 0), printed(109, 184, 0), ""},
		{"one slower by chance", printed(100, 200, 0), printed(100, 200, 0),
			strings.Join(strings.Split(printed(111, 180, 0), "\n")[:5], "\n") + "\n", ""}, // two runs of the new side
		{"allocates", printed(100, 200, 0), printed(100, 200, 0), printed(100, 200, 1), "dma A/x allocates 1 times"},
		{"one is missing", printed(100, 200, 0), printed(100, 200, 0),
			strings.ReplaceAll(printed(100, 200, 0), "BenchmarkB", "BenchmarkC"), "dma B: sec/op of not all sides"},
		{"a metric of the new side", printed(100, 200, 0), printed(100, 200, 0),
			strings.ReplaceAll(printed(100, 200, 0), " ns/op", " ns/op\t7 wakes/op"), ""},
		{"nothing new", printed(100, 200, 0), printed(100, 200, 0), "pkg: dma\n", "not a table of base, aa and new"},
		{"nothing at all", "pkg: dma\n", "pkg: dma\n", "pkg: dma\n", "nothing was compared"},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			treetest.Write(t, filepath.Join(dir, "dma.base"), c.base)
			treetest.Write(t, filepath.Join(dir, "dma.aa"), c.same)
			treetest.Write(t, filepath.Join(dir, "dma.new"), c.now)
			var out strings.Builder
			err := judge(t.Context(), ".", dir, &out)
			if c.wrong == "" && err != nil || c.wrong != "" && (err == nil || !strings.Contains(err.Error(), c.wrong)) {
				t.Errorf("error %v, want %q\n%s", err, c.wrong, out.String())
			}
		})
	}
}

func TestResultsOfAllPackagesAreJudged(t *testing.T) {
	dir := t.TempDir()
	for _, pkg := range []string{"dma", "nic_gve"} {
		for _, side := range []string{sideBase, sideSame} {
			treetest.Write(t, filepath.Join(dir, pkg+"."+side), printed(100, 200, 0))
		}
	}
	treetest.Write(t, filepath.Join(dir, "dma.new"), printed(100, 200, 0))
	treetest.Write(t, filepath.Join(dir, "nic_gve.new"), printed(150, 300, 0))
	if err := judge(t.Context(), ".", dir, &strings.Builder{}); err == nil {
		t.Error("the second package is slow, and passes")
	}
	if err := judge(t.Context(), ".", t.TempDir(), &strings.Builder{}); err == nil {
		t.Error("no results pass")
	}
}

func results(pkg string, names ...string) []sample {
	var all []sample
	for _, n := range names {
		all = append(all, sample{pkg, n, "1\t1 ns/op"})
	}
	return all
}

func TestResultsGoByTheNamesOfTheBase(t *testing.T) {
	rules, err := heirs.Parse("package nic -> lab/nic\nbench nic BenchmarkOld -> bench wire BenchmarkNew\n")
	if err != nil {
		t.Fatal(err)
	}
	c := comparison{packages: []string{"nic", "dma"}, rules: rules}
	if got := fmt.Sprint(c.newPackages()); got != "[dma lab/nic wire]" {
		t.Errorf("built are %s", got)
	}
	base := append(results("nic", "BenchmarkA/x", "BenchmarkOld/y"), results("dma", "BenchmarkD")...)
	samples := map[string][]sample{
		sideBase: base, sideSame: base,
		sideNew: append(append(results("lab/nic", "BenchmarkA/x", "BenchmarkFurther"), results("wire", "BenchmarkNew/y")...),
			results("dma", "BenchmarkD")...),
	}
	dir := t.TempDir()
	if err := write(dir, samples, rules); err != nil {
		t.Fatal(err)
	}
	for _, side := range []string{sideBase, sideSame, sideNew} {
		got, err := os.ReadFile(filepath.Join(dir, "nic."+side))
		want := "pkg: nic\nBenchmarkA/x\t1\t1 ns/op\nBenchmarkOld/y\t1\t1 ns/op\n"
		if err != nil || string(got) != want {
			t.Errorf("%s: %q, error %v, want %q", side, got, err, want)
		}
	}
	samples[sideNew] = results("lab/nic", "BenchmarkA/x")
	err = write(dir, samples, rules)
	for _, want := range []string{"nic BenchmarkOld/y has no heir", "dma BenchmarkD has no heir"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want one with %q", err, want)
		}
	}
}

func TestCommitsAreCompared(t *testing.T) {
	bench := func(pkg, name, body string) string {
		return "package " + pkg + "\n\nimport \"testing\"\n\nvar sink []byte\n\n" +
			"func Benchmark" + name + "(b *testing.B) {\n\tfor b.Loop() {\n\t\t" + body + "\n\t}\n}\n"
	}
	dir := treetest.New(t, map[string]string{
		"go.mod":         "module " + tree.Module + "\n\ngo 1.26\n",
		"a/a_test.go":    bench("a", "Old", "sink = sink[:0]"),
		"none/none.go":   "package none\n",
		"rules/of/moves": "package a -> b\nbench a BenchmarkOld -> bench b BenchmarkNew\n",
	})
	git := func(args ...string) {
		t.Helper()
		cmd := exec.Command("git", append([]string{"-c", "user.name=a", "-c", "user.email=a@b"}, args...)...)
		cmd.Dir = dir
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("git %v: %v: %s", args, err, out)
		}
	}
	git("add", ".")
	git("commit", "-q", "-m", "base")
	git("tag", "base")
	tools, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("VNIC_TOOLS", tools)
	t.Chdir(dir)
	compare := func(args ...string) error {
		var out, errs strings.Builder
		args = append([]string{"--base", "base", "--pairs", "2", "--benchtime", "1000x"}, args...)
		err := run(t.Context(), args, &out, &errs)
		t.Logf("%s%s%v", errs.String(), out.String(), err)
		return err
	}

	if err := os.Rename("a", "b"); err != nil {
		t.Fatal(err)
	}
	treetest.Write(t, "b/a_test.go", bench("b", "New", "sink = make([]byte, 100)"))
	keep := filepath.Join(t.TempDir(), "keep")
	err = compare("--mapping", "rules/of/moves", "--keep", keep, "a", "none")
	if err == nil || !strings.Contains(err.Error(), "a Old allocates 1 times, where it did not") {
		t.Errorf("error %v", err)
	}
	if names, err := filepath.Glob(keep + "/a.*"); err != nil || len(names) != 3 {
		t.Errorf("%v, error %v: not the results of three sides", names, err)
	}
	treetest.Write(t, "empty", "")
	if err := compare("--mapping", "empty", "a"); err == nil || !strings.Contains(err.Error(), "has no heir") {
		t.Errorf("without a mapping: error %v", err)
	}
	err = compare("--mapping", "empty", "--new", "nothing", "a")
	if err == nil || !strings.Contains(err.Error(), "no commit nothing") {
		t.Errorf("a commit that is not there: error %v", err)
	}
	if out, err := exec.Command("git", "worktree", "list").Output(); err != nil || strings.Count(string(out), "\n") != 1 {
		t.Errorf("worktrees are left: %s", out)
	}
}
