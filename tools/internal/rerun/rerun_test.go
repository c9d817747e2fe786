package rerun

import (
	"path/filepath"
	"strings"
	"testing"

	"vnic.dev/vnic/tools/internal/treetest"
)

func open(t *testing.T) *List {
	t.Helper()
	dir := t.TempDir()
	t.Setenv("VNIC_RERUNS", "")
	treetest.Write(t, filepath.Join(dir, Flaky), "TestInProse may be run again.\n\n| test | cause |\n|---|---|\n"+
		"| nic TestOld, closed | a cause |\n| `test/16-boot.sh` | another |\n")
	l, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func TestWhatIsRunAgain(t *testing.T) {
	l := open(t)
	for _, c := range []struct{ test, output, refused string }{
		{"TestNew", "timed out\n", ""},
		{"TestInProse", "timed out\n", ""},
		{"TestOl", "timed out\n", ""},
		{"TestOldest", "timed out\n", ""},
		{"TestOld", "timed out\n", "row"},
		{"test/16-boot.sh", "FAIL\n", "row"},
		{"TestNew", "WARNING: DATA RACE\n", "DATA RACE"},
		{"TestNew", "panic: nil map\n", "panic"},
		{"TestNew", "found unexpected goroutines:\n", "unexpected goroutines"},
		{"TestNew", "descriptors before:\n", "descriptors before"},
		{"TestNew", "100 bytes came back changed\n", "came back changed"},
		{"TestNew", "SHA-256 is ab, want cd\n", "SHA-256"},
		{"test/14-pcap.sh", "ok   runs.0.sha256_match == true   (true, true)\nFAIL late\n", ""},
		{"test/14-pcap.sh", "ok   a digest\nFAIL runs.0.sha256_match == true   (false, true)\n", "sha256"},
		{"FuzzNew", "Failing input written to testdata/fuzz/FuzzNew/1\n", "Failing input"},
	} {
		got, err := l.Refuse(c.test, c.output)
		if err != nil || (got == "") != (c.refused == "") || !strings.Contains(got, c.refused) {
			t.Errorf("%s with %q: %q, %v; want %q", c.test, c.output, got, err, c.refused)
		}
	}
}

func TestAtMostTwo(t *testing.T) {
	l := open(t)
	for i := range Limit {
		if why, err := l.Refuse("TestNew", "x"); why != "" || err != nil {
			t.Fatalf("after %d: %q, %v", i, why, err)
		}
		if err := l.Add("nic", "TestNew", "=== RUN TestNew\n    a_test.go:1: late\n--- FAIL: TestNew\n"); err != nil {
			t.Fatal(err)
		}
	}
	if why, err := l.Refuse("TestAnother", "x"); why == "" || err != nil {
		t.Errorf("a third one: %q, %v", why, err)
	}
	if rows, err := l.Rows(); err != nil || len(rows) != 2 || rows[0] != "nic TestNew: a_test.go:1: late" {
		t.Errorf("%q, %v", rows, err)
	}
}
