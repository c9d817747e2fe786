package main

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"vnic.dev/vnic/internal/testkit"
)

// onWrite calls do before it stores the first byte.
type onWrite struct {
	b  bytes.Buffer
	do func()
}

func (w *onWrite) Write(b []byte) (int, error) {
	if w.b.Len() == 0 {
		w.do()
	}
	return w.b.Write(b)
}

// plotted runs vnic run with --plot, and calls do when vnic first writes to stdout: when it prints the report.
func plotted(ctx context.Context, dir string, do func(), more ...string) (status int, out, errs string) {
	w := onWrite{do: do}
	var e bytes.Buffer
	args := []string{"run", "--guest", "inproc", "--size", "1M", "--gpu-memory", "32M", "--sandbox", "off", "--plot",
		filepath.Join(dir, "x.svg")}
	status = realMain(ctx, append(args, more...), &w, &e)
	return status, w.b.String(), e.String()
}

// The report is printed also if the picture cannot be written.
func TestPictureThatCannotBeWritten(t *testing.T) {
	testkit.LeavesNothing(t)
	dir := filepath.Join(t.TempDir(), "pictures")
	testkit.OK(t, os.Mkdir(dir, 0o700))
	status, out, errs := plotted(t.Context(), dir, func() { testkit.OK(t, os.RemoveAll(dir)) })
	want := "vnic: --plot " + dir + "/x.svg: no such file or directory: make its directory, or give another name\n"
	if status != exitFailed || !strings.Contains(out, "match") || !strings.Contains(errs, want) {
		t.Errorf("status %d\n%s%s", status, out, errs)
	}
}

// A run that fails leaves an older picture unchanged.
func TestPictureOfNoRun(t *testing.T) {
	testkit.LeavesNothing(t)
	dir := t.TempDir()
	testkit.OK(t, os.WriteFile(filepath.Join(dir, "x.svg"), []byte("old"), 0o600))
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errInterrupted)
	for name, do := range map[string]func() int{
		"interrupted": func() int { status, _, _ := plotted(ctx, dir, func() {}); return status },
		"--pcap that cannot be": func() int {
			status, _, _ := plotted(t.Context(), dir, func() {}, "--pcap", dir)
			return status
		},
	} {
		testkit.Equal(t, name, do(), exitFailed)
		entries := testkit.Must(os.ReadDir(dir))(t)
		old := testkit.Must(os.ReadFile(filepath.Join(dir, "x.svg")))(t)
		if len(entries) != 1 || string(old) != "old" {
			t.Errorf("%s: %v, %q", name, entries, old)
		}
	}
}

func TestLabTitle(t *testing.T) {
	for name, want := range map[string]string{"": "", "a3-high": "a3-high", "labs/my.lab.yaml": "my.lab"} {
		testkit.Equal(t, name, labTitle(name), want)
	}
}
