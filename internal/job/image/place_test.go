package image

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	"vnic.dev/vnic/internal/testkit"
)

func text(s string) content {
	return content{mode: 0o644, write: func(w io.Writer) error { _, err := io.WriteString(w, s); return err }}
}

func left(t *testing.T, dir string) string {
	t.Helper()
	var names []string
	entries := testkit.Must(os.ReadDir(dir))(t)
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return strings.Join(names, " ")
}

func read(t *testing.T, path string) string {
	t.Helper()
	b := testkit.Must(os.ReadFile(path))(t)
	return string(b)
}

// Invariant: vnic image: A file or directory is written completely or not at all, and files that
// are not part of an image stay.
func TestFileIsWholeOrNotThere(t *testing.T) {
	dir := t.TempDir()
	f := filepath.Join(dir, "f")
	broken := errors.New("broken")
	half := content{mode: 0o644, write: func(w io.Writer) error { _, _ = io.WriteString(w, "half"); return broken }}
	if err := writeFile(f, false, half); !errors.Is(err, broken) || left(t, dir) != "" {
		t.Errorf("%v, left %s", err, left(t, dir))
	}
	if err := writeFile(f, false, text("one")); err != nil || read(t, f) != "one" {
		t.Fatal(err)
	}
	if err := writeFile(f, false, text("two")); !errors.Is(err, ErrExists) || read(t, f) != "one" {
		t.Errorf("a second: %v", err)
	}
	if err := writeFile(f, true, half); !errors.Is(err, broken) || read(t, f) != "one" {
		t.Errorf("half of it: %v", err)
	}
	if err := writeFile(f, true, text("two")); err != nil || read(t, f) != "two" {
		t.Error(err)
	}
	// The content's write creates the file, as another process might meanwhile.
	g := filepath.Join(dir, "g")
	late := content{mode: 0o644, write: func(io.Writer) error { return os.WriteFile(g, []byte("theirs"), 0o644) }}
	if err := writeFile(g, false, late); !errors.Is(err, ErrExists) || read(t, g) != "theirs" {
		t.Errorf("theirs: %v", err)
	}
	testkit.ErrorSays(t, writeFile(dir, true, text("x")), "it is not a file")
	testkit.Equal(t, "left", left(t, dir), "f g")
}

// Invariant: vnic image: A file or directory is written completely or not at all, and files that
// are not part of an image stay.
func TestDirectoryIsWholeOrNotThere(t *testing.T) {
	top := t.TempDir()
	d := filepath.Join(top, "d")
	files := map[string]content{"a": text("1"), "b": text("2")}
	if err := writeDir(d, false, files); err != nil || left(t, d) != "a b" {
		t.Fatal(err)
	}
	testkit.ErrorIs(t, writeDir(d+"/", false, files), ErrExists)
	broken := errors.New("broken")
	files["b"] = content{mode: 0o644, write: func(io.Writer) error { return broken }}
	if err := writeDir(d, true, files); !errors.Is(err, broken) || read(t, filepath.Join(d, "b")) != "2" {
		t.Errorf("half of it: %v", err)
	}
	files["b"] = text("3")
	if err := writeDir(d, true, files); err != nil || read(t, filepath.Join(d, "b")) != "3" {
		t.Error(err)
	}
	testkit.OK(t, os.WriteFile(filepath.Join(d, "thesis.tex"), nil, 0o644))
	if err := writeDir(d, true, files); err == nil ||
		!strings.Contains(err.Error(), "thesis.tex in it is not of a guest image") || left(t, d) != "a b thesis.tex" {
		t.Errorf("a thesis: %v", err)
	}
	testkit.Equal(t, "left", left(t, top), "d")
}

// Temporary files and directories of killed processes are removed. A living process's stay, and so do others until
// their own target is written.
func TestWhatKilledProcessesLeaveIsRemoved(t *testing.T) {
	top := t.TempDir()
	d := filepath.Join(top, "d")
	for _, name := range []string{".d.new-1", ".d.new-2", ".dd.new-3"} {
		testkit.OK(t, errors.Join(os.Mkdir(filepath.Join(top, name), 0o755), os.WriteFile(filepath.Join(top, name, "a"), nil,
			0o600)))
	}
	testkit.OK(t, os.WriteFile(filepath.Join(top, ".d.new-4"), nil, 0o600))
	alive, err := os.Open(filepath.Join(top, ".d.new-2"))
	if err == nil {
		err = claim(alive)
	}
	testkit.OK(t, err)
	defer alive.Close()
	during := ""
	c := content{mode: 0o644, write: func(io.Writer) error { during = left(t, top); sweep(d); return nil }}
	testkit.OK(t, writeDir(d, false, map[string]content{"a": c}))
	if got := left(t, top); got != ".d.new-2 .dd.new-3 d" || left(t, d) != "a" || len(strings.Fields(during)) != 3 {
		t.Errorf("left %s, while it was made %s", got, during)
	}
	if err := writeFile(filepath.Join(top, "dd"), false, text("x")); err != nil || left(t, top) != ".d.new-2 d dd" {
		t.Errorf("%v, left %s", err, left(t, top))
	}
}

// An error of the file is explained; an error of the content stays as it is.
func TestErrorsSayWhatCanBeDone(t *testing.T) {
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Skip(err)
	}
	if err := text("x").fill(full, "out"); !errors.Is(err, unix.ENOSPC) ||
		err.Error() != "out: no space left on device: free some, or give a name elsewhere" {
		t.Error(err)
	}
	null := testkit.Must(os.OpenFile("/dev/null", os.O_WRONLY, 0))(t)
	gone := content{write: func(io.Writer) error { _, err := os.Open("/no/such/library.so"); return err }}
	if err := gone.fill(null, "out"); err == nil || strings.Contains(err.Error(), "out") {
		t.Error(err)
	}
	if err := writeFile("/no/such/dir/x", false, text("x")); err == nil || strings.Contains(err.Error(), ".new-") {
		t.Error(err)
	}
	testkit.ErrorSays(t, writeFile("/dev/null/x", false, text("x")), "/dev/null/x: not a directory: ")
}
