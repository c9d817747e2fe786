package guestimages

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cavaliergopher/cpio"
	"golang.org/x/sys/unix"

	"vnic.dev/vnic/internal/elfdeps"
	"vnic.dev/vnic/internal/testkit"
)

// unpacked writes and reads the archive, and returns by name "mode content", "-> target" for a link, or
// "dir mode".
func unpacked(t *testing.T, o *Overlay) map[string]string {
	t.Helper()
	var b bytes.Buffer
	testkit.OK(t, o.Write(&b))
	m := map[string]string{}
	r := cpio.NewReader(&b)
	for {
		f, err := r.Next()
		if err == io.EOF {
			return m
		}
		testkit.OK(t, err)
		content := string(testkit.Must(io.ReadAll(r))(t)) + f.Linkname
		if dir := filepath.Dir(f.Name); dir != "." && m[dir] == "" {
			t.Errorf("%s comes before its directory", f.Name)
		}
		switch f.Mode & unix.S_IFMT {
		case unix.S_IFLNK:
			m[f.Name] = "-> " + content
		case unix.S_IFDIR:
			m[f.Name] = fmt.Sprintf("dir %o", f.Mode&^unix.S_IFMT)
		default:
			m[f.Name] = fmt.Sprintf("%o %s", f.Mode&^unix.S_IFMT, content)
		}
	}
}

func TestCopiesKeepModesLinksAndDirectories(t *testing.T) {
	dir := t.TempDir()
	put(t, filepath.Join(dir, "tree/sub/run"), []byte("#!/bin/sh\n"))
	put(t, filepath.Join(dir, "tree/empty"), nil)
	put(t, filepath.Join(dir, "one"), []byte("1"))
	for path, mode := range map[string]os.FileMode{"tree/sub": 0o750, "tree/empty": 0o600, "one": 0o4755 | os.ModeSetuid} {
		testkit.OK(t, os.Chmod(filepath.Join(dir, path), mode))
	}
	testkit.OK(t, os.Symlink("sub/run", filepath.Join(dir, "tree/link")))
	o := NewOverlay()
	for host, guest := range map[string]string{"tree": "/opt/tree", "one": "/usr/bin/one", "tree/link": "/followed"} {
		testkit.OK(t, o.Copy(filepath.Join(dir, host), guest))
	}
	o.Text("/etc/passwd", "root")
	o.Text("/usr/bin/one", "not this")
	o.Link("/bin/x", "/usr/bin/one")
	if !o.Has("/opt/tree/sub/run") || o.Has("/opt/none") {
		t.Error("Has")
	}
	m := unpacked(t, o)
	for name, want := range map[string]string{
		"opt": "dir 755", "opt/tree": "dir 755", "opt/tree/sub": "dir 750", "opt/tree/sub/run": "755 #!/bin/sh\n",
		"opt/tree/empty": "600 ",
		"opt/tree/link":  "-> sub/run", "usr/bin/one": "4755 1", "followed": "755 #!/bin/sh\n", "etc/passwd": "644 root",
		"bin/x": "-> /usr/bin/one",
	} {
		testkit.Equal(t, name, m[name], want)
	}
}

func TestCopiesThatCannotBeAreRefused(t *testing.T) {
	dir := t.TempDir()
	put(t, filepath.Join(dir, "a"), []byte("aaaa"))
	put(t, filepath.Join(dir, "b"), []byte("bbbb"))
	a, b := filepath.Join(dir, "a"), filepath.Join(dir, "b")
	for _, guest := range []string{"relative", "", "/proc/x", "/dev", "/x/../sys/y", "/init", "/vnic/config.json", "/"} {
		if err := NewOverlay().Copy(a, guest); err == nil {
			t.Errorf("%q: no error", guest)
		}
	}
	o := NewOverlay()
	testkit.ErrorIs(t, o.Copy(filepath.Join(dir, "none"), "/x"), os.ErrNotExist)
	testkit.OK(t, errors.Join(o.Copy(a, "/x"), o.Copy(a, "/x")))
	testkit.ErrorSays(t, o.Copy(b, "/x"), a)
	testkit.OK(t, o.Copy(b, "/y"))
	testkit.Equal(t, "bytes", o.Bytes(), 8)
	if err := os.Truncate(a, 1); err != nil { // smaller than it was at Copy
		t.Fatal(err)
	}
	if err := o.Write(io.Discard); err == nil {
		t.Error("a file that became shorter: no error")
	}
}

func TestProgramsComeWithWhatTheyNeed(t *testing.T) {
	files, err := elfdeps.Finder{}.Find("/bin/sh")
	if err != nil || len(files) == 0 {
		t.Skipf("/bin/sh is not dynamic here: %v", err)
	}
	dir := t.TempDir()
	put(t, filepath.Join(dir, "script"), []byte("#!/usr/bin/env -S\n"))
	put(t, filepath.Join(dir, "ok"), []byte("#!/bin/sh -e\necho\n"))
	put(t, filepath.Join(dir, "nested"), []byte("#!"+filepath.Join(dir, "ok")+"\n"))
	put(t, filepath.Join(dir, "loop"), []byte("#!"+filepath.Join(dir, "loop")+"\n"))
	put(t, filepath.Join(dir, "text"), []byte("text"))
	put(t, filepath.Join(dir, "object"), ko(t, "depends=\x00"))
	put(t, filepath.Join(dir, "plain"), []byte("\x7fELF"))
	testkit.OK(t, os.Chmod(filepath.Join(dir, "plain"), 0o644))
	o := NewOverlay()
	testkit.OK(t, o.Program(filepath.Join(dir, "nested"), "/run/it"))
	m := unpacked(t, o)
	for _, name := range append(files, "/run/it", "/bin/sh", filepath.Join(dir, "ok")) {
		if m[strings.TrimPrefix(name, "/")] == "" {
			t.Errorf("%s is missing", name)
		}
	}
	for _, bad := range []string{"script", "loop", "text", "object", "plain", "none", "."} {
		if err := NewOverlay().Program(filepath.Join(dir, bad), "/p"); err == nil {
			t.Errorf("%s: no error", bad)
		}
	}
}
