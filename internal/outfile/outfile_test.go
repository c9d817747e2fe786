package outfile

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	"vnic.dev/vnic/internal/testkit"
)

// A second writer is refused, and what the first has written stays; once that is closed, the file
// is rewritten.
//
// Invariant: vnic: A mistake gives one message that says what to do, and leaves nothing.
func TestSecondIsRefused(t *testing.T) {
	name := filepath.Join(t.TempDir(), "x")
	testkit.OK(t, os.WriteFile(name, []byte("something old"), 0o600))
	f, err := Create(name)
	testkit.OK(t, err)
	if _, err := f.WriteString("first"); err != nil {
		t.Fatal(err)
	}
	if _, err := Create(name); !errors.Is(err, ErrInUse) || !strings.Contains(err.Error(), name) {
		t.Errorf("second: %v", err)
	}
	if b, err := os.ReadFile(name); string(b) != "first" || err != nil {
		t.Errorf("%q, %v", b, err)
	}
	testkit.OK(t, f.Close())
	if f, err = Create(name); err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if b, err := os.ReadFile(name); len(b) != 0 || err != nil {
		t.Errorf("%q, %v", b, err)
	}
}

func TestErrorsSayWhatCanBeDone(t *testing.T) {
	dir := t.TempDir()
	fifo := filepath.Join(dir, "fifo")
	testkit.OK(t, unix.Mkfifo(fifo, 0o600))
	for name, want := range map[string]string{
		dir:              dir + ": is a directory: give another name",
		dir + "/no/file": dir + "/no/file: no such file or directory: make its directory, or give another name",
		fifo:             fifo + ": a FIFO that nobody reads: start its reader first",
	} {
		if f, err := Create(name); err == nil || err.Error() != want {
			t.Errorf("%v, %v\nwant %s", f, err, want)
		}
	}
	f, err := Create("/dev/full") // a device is what it is
	testkit.OK(t, err)
	if _, err := f.WriteString("x"); !errors.Is(err, unix.ENOSPC) {
		t.Error(err)
	}
	_ = f.Close()
}
