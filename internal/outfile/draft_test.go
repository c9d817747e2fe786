package outfile

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
	"vnic.dev/vnic/internal/testkit"
)

func entries(t *testing.T, dir string) (names []string) {
	for _, e := range testkit.Must(os.ReadDir(dir))(t) {
		names = append(names, e.Name())
	}
	return names
}

func TestDraftIsWholeOrNothing(t *testing.T) {
	for _, named := range []bool{true, false} {
		wholeOrNothing(t, named)
	}
}

// draftOf makes a draft; named: as on a file system without unnamed files.
func draftOf(t *testing.T, name string, named bool) *Draft {
	d := testkit.Must(NewDraft(name))(t)
	if d.Temp == "" && named {
		testkit.OK(t, d.f.Close())
		testkit.OK(t, d.withName())
	}
	if d.Temp == "" == named {
		t.Fatalf("a draft named %q", d.Temp)
	}
	return d
}

func wholeOrNothing(t *testing.T, named bool) {
	dir := t.TempDir()
	name, link := filepath.Join(dir, "x.svg"), filepath.Join(dir, "link.svg")
	testkit.OK(t, os.WriteFile(name, []byte("old"), 0o644))
	testkit.OK(t, os.Symlink("x.svg", link))
	read := func() string { return string(testkit.Must(os.ReadFile(name))(t)) }

	d := draftOf(t, name, named)
	testkit.Equal(t, "meanwhile", read(), "old")
	drafts := 0
	if named {
		drafts = 1
	}
	testkit.Equal(t, "files, if the process is killed now", len(entries(t, dir)), 2+drafts)
	testkit.OK(t, d.Discard())
	testkit.Equal(t, "after a draft that was given up", read(), "old")
	testkit.Equal(t, "files", len(entries(t, dir)), 2)

	d = draftOf(t, name, named)
	d.Rename = func() error { return unix.EPERM }
	testkit.ErrorSays(t, d.Commit([]byte("new")), name+": operation not permitted: give a name where you may write")
	testkit.Equal(t, "after a name that could not be given", read(), "old")
	testkit.Equal(t, "files", len(entries(t, dir)), 2)

	d = draftOf(t, link, named)
	testkit.OK(t, d.Commit([]byte("new")))
	testkit.OK(t, d.Discard())
	testkit.Equal(t, "at the end", read(), "new")
	testkit.Equal(t, "files", len(entries(t, dir)), 2)
	st := testkit.Must(os.Lstat(name))(t)
	testkit.Equal(t, "mode", st.Mode(), mode)
}

func TestDraftThatCannotBe(t *testing.T) {
	dir := t.TempDir()
	fifo := filepath.Join(dir, "fifo")
	testkit.OK(t, unix.Mkfifo(fifo, 0o600))
	for name, want := range map[string]string{
		dir:              dir + ": not a regular file: give another name",
		fifo:             fifo + ": not a regular file: give another name",
		dir + "/no/file": dir + "/no/file: no such file or directory: make its directory, or give another name",
		"/proc/x.svg":    "/proc/x.svg: no such file or directory: make its directory, or give another name",
	} {
		testkit.ErrorSays(t, testkit.Err(NewDraft(name)), want)
	}
	testkit.Equal(t, "files", len(entries(t, dir)), 1)
	testkit.OK(t, os.Chmod(dir, 0o500))
	t.Cleanup(func() { testkit.NoError(t, os.Chmod(dir, 0o700)) }) // otherwise the directory cannot be removed
	var err error
	testkit.WithoutOverride(t, func() { err = testkit.Err(NewDraft(filepath.Join(dir, "x"))) })
	testkit.ErrorIs(t, errors.Unwrap(err), unix.EACCES)
}

// Replace changes an existing file only if write succeeds.
func TestReplace(t *testing.T) {
	name := filepath.Join(t.TempDir(), "x.txt")
	for _, c := range []struct {
		text, want string
		err        error
	}{{"one", "one", nil}, {"two", "one", unix.EIO}, {"three", "three", nil}} {
		err := Replace(name, func(f *os.File) error { return errors.Join(testkit.Err(f.WriteString(c.text)), c.err) })
		testkit.ErrorIs(t, err, c.err)
		testkit.Equal(t, "content", string(testkit.Must(os.ReadFile(name))(t)), c.want)
		testkit.Equal(t, "mode", testkit.Must(os.Stat(name))(t).Mode(), 0o644)
		testkit.Equal(t, "files", len(entries(t, filepath.Dir(name))), 1)
	}
	none := filepath.Join(t.TempDir(), "none", "x.txt")
	testkit.ErrorIs(t, Replace(none, func(*os.File) error { return nil }), os.ErrNotExist)
}
