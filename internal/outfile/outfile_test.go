package outfile

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	"vnic.dev/vnic/internal/testkit"
)

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
	f, err := Create("/dev/full")
	testkit.OK(t, err)
	if _, err := f.WriteString("x"); !errors.Is(err, unix.ENOSPC) {
		t.Error(err)
	}
	_ = f.Close()
}

func TestFilesAreTheirUsersAlone(t *testing.T) {
	dir := t.TempDir()
	old := filepath.Join(dir, "old")
	testkit.OK(t, os.WriteFile(old, nil, 0o600))
	testkit.OK(t, os.Chmod(old, 0o644))
	for _, name := range []string{old, filepath.Join(dir, "new")} {
		f := testkit.Must(Create(name))(t)
		st := testkit.Must(f.Stat())(t)
		testkit.Equal(t, "mode of "+name, st.Mode().Perm(), 0o600)
		testkit.OK(t, f.Close())
	}
}

// Invariant: vnic: No link of another user makes vnic empty a file.
func TestLinksOfOthersAreNotFollowed(t *testing.T) {
	dir := t.TempDir()
	file, link, second := filepath.Join(dir, "file"), filepath.Join(dir, "link"), filepath.Join(dir, "second")
	testkit.OK(t, os.Symlink("file", link))
	testkit.OK(t, os.Symlink(link, second))
	f := testkit.Must(Create(link))(t) // to a file that does not exist yet
	testkit.OK(t, testkit.Err(f.WriteString("precious")))
	testkit.OK(t, f.Close())
	testkit.Equal(t, "file", string(testkit.Must(os.ReadFile(file))(t)), "precious")
	f, err := Create(second)
	if err != nil {
		t.Fatal(err)
	}
	testkit.Equal(t, "file", string(testkit.Must(os.ReadFile(file))(t)), "")
	testkit.OK(t, f.Close())
	f = testkit.Must(os.OpenFile(file, os.O_WRONLY, 0))(t)
	testkit.OK(t, testkit.Err(f.WriteString("precious")))
	defer f.Close()
	r, w, err := os.Pipe() // /dev/stdout is often a pipe
	testkit.OK(t, err)
	defer r.Close()
	defer w.Close()
	fd := fmt.Sprintf("/proc/self/fd/%d", w.Fd())
	out := testkit.Must(Create(fd))(t)
	testkit.OK(t, out.Close())
	testkit.OK(t, os.Remove(second))
	testkit.OK(t, os.Symlink("second", second))
	testkit.ErrorIs(t, testkit.Err(Create(second)), unix.ELOOP)
	if os.Geteuid() != 0 {
		t.Skip("a link of another user takes root to make: the rest was not tried")
	}
	testkit.OK(t, os.Lchown(link, 12345, 12345))
	err = testkit.Err(Create(link))
	testkit.ErrorIs(t, err, ErrLink)
	testkit.ErrorSays(t, err, link+": a symbolic link that another user has made: give another name")
	testkit.Equal(t, "file", string(testkit.Must(os.ReadFile(file))(t)), "precious")
}
