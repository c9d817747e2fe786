package assets

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"vnic.dev/vnic/internal/testkit"
)

// A script in the place of a dynamic program starts it by the tree's loader, also by a link.
func TestProgramsOfATreeRunByItsLoader(t *testing.T) {
	root := testkit.Must(filepath.EvalSymlinks(t.TempDir()))(t)
	program := string(testkit.Must(os.ReadFile("/bin/true"))(t)) // dynamic
	for name, f := range map[string]struct {
		text string
		mode os.FileMode
	}{
		Loader:                        {"#!/bin/sh\necho \"$@\"\n", 0o755},
		"usr/libexec/gcc/cc1":         {program, 0o755},
		"usr/libexec/gcc/liblto.so.0": {program, 0o755},
		"usr/libexec/gcc/data":        {program, 0o644},
		"usr/libexec/gcc/script":      {"#!/bin/sh\n", 0o755},
	} {
		write(t, filepath.Join(root, name), f.text)
		testkit.OK(t, os.Chmod(filepath.Join(root, name), f.mode))
	}
	testkit.ErrorSays(t, RunByOwnLoader(root, "usr/lib", "none"), root+": no programs among the tools")
	testkit.OK(t, RunByOwnLoader(root, "usr/libexec/*"))
	list := testkit.Must(Contents(filepath.Join(root, "usr/libexec/gcc")))(t)
	testkit.Equal(t, "entries: those of before, and cc1.real", len(list), 5)
	link := filepath.Join(t.TempDir(), "cc")
	testkit.OK(t, os.Symlink(filepath.Join(root, "usr/libexec/gcc/cc1"), link))
	out, err := exec.Command(link, "a", "b").CombinedOutput()
	testkit.OK(t, err)
	testkit.Equal(t, "arguments", string(out), "--library-path "+filepath.Join(root, Libraries)+" --argv0 "+link+" "+
		root+"/usr/libexec/gcc/cc1.real a b\n")
	testkit.OK(t, os.Remove(filepath.Join(root, "sbin")))
	testkit.OK(t, os.Mkdir(filepath.Join(root, "sbin"), 0o755))
	testkit.ErrorSays(t, MergeUsr(root), "packages with files in /sbin: their suite has no merged /usr")
}
