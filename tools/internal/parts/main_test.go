package main

import (
	"bytes"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"vnic.dev/vnic/tools/internal/treetest"
)

func checkout(t *testing.T, table string, files map[string]string) {
	t.Helper()
	all := map[string]string{
		"tools/parts.txt": table, "docs/flaky.md": "", "test/lib.sh": "", "test/run": "",
		"test/2-b.sh": "", "test/1-a.sh": "", "test/3-fast.sh": "",
		"nic/nic_test.go": "func FuzzX(f *testing.F) {}\n", "lab/lab_test.go": "if testkit.Long() {}\n",
		"wire/wire_test.go": "func TestX(t *testing.T) {}\n", "tools/x_test.go": "func FuzzX(f *testing.F) {}\n",
	}
	for name, text := range files {
		all[name] = text
	}
	t.Chdir(treetest.New(t, all))
	t.Setenv("VNIC_RERUNS", "")
}

func TestPartsHoldEachUnitOnce(t *testing.T) {
	checkout(t, "# seconds\n900 test/1-a.sh\nspeed 60 test/3-fast.sh\n620 test/2-b.sh\n", nil)
	for _, c := range []struct{ args, want string }{
		{"count", "2\n"},
		{"list", "part 1, 21 minutes:\n    3:00  fuzz ./nic\n    3:00  go ./lab\n   15:00  test/1-a.sh\n" +
			"part 2, 11 minutes:\n   10:20  test/2-b.sh\n"},
		{"--speed list", "part 1, 1 minutes:\n    1:00  test/3-fast.sh\n"},
	} {
		var out bytes.Buffer
		if err := run(strings.Fields(c.args), &out); err != nil || out.String() != c.want {
			t.Errorf("%s: %v\n%s", c.args, err, &out)
		}
	}
}

func TestBadTablesAndArguments(t *testing.T) {
	for _, c := range []struct{ table, args, says string }{
		{"60 test/9-gone.sh\n", "list", "there is no test/9-gone.sh"},
		{"1501 test/1-a.sh\n", "list", "divide it"},
		{"fast 60 test/1-a.sh\n", "list", "is no row"},
		{"", "run 2", "parts are 1 to 1"},
		{"", "run 0", "parts are 1 to 1"},
		{"", "walk", "usage"},
		{"", "", "usage"},
	} {
		checkout(t, c.table, nil)
		var out bytes.Buffer
		if err := run(strings.Fields(c.args), &out); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%q, %s: %v, want %q", c.table, c.args, err, c.says)
		}
	}
}

func TestFailedScriptsAreRunAgain(t *testing.T) {
	defer func(was time.Duration) { patience = was }(patience)
	patience = time.Second / 10
	once := "#!/bin/sh\nmkdir seen || exit 0\necho first; echo FAIL late; exit 1\n"
	for _, c := range []struct {
		name, script string
		passes       bool
		says         string
	}{
		{"it passes then", once, true, "run again: test/1-a.sh"},
		{"always", "#!/bin/sh\nexit 1\n", false, "1 passed, 1 failed"},
		{"it leaves a process", "#!/bin/sh\nsleep 9 &\n", false, "leaves a process"},
		{"a wrong byte", strings.Replace(once, "late", "digest", 1), false, "not run again"},
	} {
		t.Run(c.name, func(t *testing.T) {
			checkout(t, "hand 1 fuzz ./nic\nhand 1 go ./lab\nspeed 1 test/3-fast.sh\n", nil)
			treetest.Script(t, "test/1-a.sh", c.script)
			treetest.Script(t, "test/2-b.sh", "#!/bin/sh\n")
			var out bytes.Buffer
			err := run([]string{"run", "all"}, &out)
			if (err == nil) != c.passes || !strings.Contains(out.String(), c.says) {
				t.Errorf("%v\n%s", err, &out)
			}
			rows, _ := filepath.Glob("bin/reruns.txt")
			if (len(rows) == 1) != c.passes {
				t.Errorf("rows in %q", rows)
			}
		})
	}
}
