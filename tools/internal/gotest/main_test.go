package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"vnic.dev/vnic/tools/internal/rerun"
	"vnic.dev/vnic/tools/internal/treetest"
)

// once begins a test file. Its function first makes a test fail in the test's first run only.
const once = `package a
import ("os"; "testing")
func first(t *testing.T, words string) {
	if f, err := os.OpenFile(t.Name(), os.O_CREATE|os.O_EXCL, 0o644); err == nil {
		f.Close()
		t.Error(words)
	}
}
func TestGood(t *testing.T) {}
`

func TestFailedTestsAreRunAgain(t *testing.T) {
	for _, c := range []struct {
		name, tests string
		failed      bool
		rows        int
		says        []string
	}{
		{"all pass", "", false, 0, []string{"1 packages passed, 0 failed"}},
		{"one passes then", `func TestLate(t *testing.T) { first(t, "late") }`, false, 1,
			[]string{"late", "run again: vnic.dev/vnic/a TestLate"}},
		{"its part fails", `func TestLate(t *testing.T) { t.Run("part", func(s *testing.T) { first(t, "late") }) }`,
			false, 1, []string{"late"}},
		{"beside a part that passes", `func TestLate(t *testing.T) {
				t.Run("loud", func(s *testing.T) { s.Log("a digest") })
				t.Run("part", func(s *testing.T) { first(t, "late") })
			}`, false, 1, []string{"late"}},
		{"always", `func TestNever(t *testing.T) { t.Error("never") }`, true, 0, []string{"never"}},
		{"a row", `func TestOld(t *testing.T) { first(t, "old") }`, true, 0, []string{"it has a row in docs/flaky.md"}},
		{"a panic", `func TestPanic(t *testing.T) { first(t, "x"); if t.Failed() { panic("out") } }`, true, 0,
			[]string{"out", "not run again"}},
		{"its main fails", `func TestMain(m *testing.M) { m.Run(); println("FAIL: it leaks"); os.Exit(1) }`, true, 0,
			[]string{"no single test failed"}},
		{"it does not build", `func TestBad(t *testing.T) { bad() }`, true, 0, []string{"undefined: bad"}},
		{"two pass then, and no third", `
			func TestA(t *testing.T) { first(t, "a") }
			func TestB(t *testing.T) { first(t, "b") }
			func TestC(t *testing.T) { first(t, "c") }`, true, 2, []string{"run again before"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			treetest.Write(t, filepath.Join(dir, "go.mod"), "module vnic.dev/vnic\n\ngo 1.26\n")
			treetest.Write(t, filepath.Join(dir, rerun.Flaky), "| a TestOld | closed |\n")
			treetest.Write(t, filepath.Join(dir, "a/a_test.go"), once+c.tests)
			t.Chdir(dir)
			t.Setenv("GOFLAGS", "")
			t.Setenv("VNIC_RERUNS", "")
			var out bytes.Buffer
			failed, err := run([]string{"-vet=off", "./..."}, &out)
			if err != nil || failed != c.failed {
				t.Errorf("failed %v, %v; want %v", failed, err, c.failed)
			}
			rows, _ := os.ReadFile("bin/reruns.txt")
			if n := strings.Count(string(rows), "\n"); n != c.rows {
				t.Errorf("%d rows, want %d: %s", n, c.rows, rows)
			}
			for _, words := range c.says {
				if !strings.Contains(out.String(), words) {
					t.Errorf("no %q", words)
				}
			}
			if t.Failed() {
				t.Log(out.String())
			}
		})
	}
}
