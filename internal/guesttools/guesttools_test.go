package guesttools

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"vnic.dev/vnic/internal/testkit"
)

func write(t *testing.T, path, text string) {
	t.Helper()
	testkit.OK(t, os.MkdirAll(filepath.Dir(path), 0o755))
	testkit.OK(t, os.WriteFile(path, []byte(text), 0o644))
}

// fill keeps the files of its second directory, adds missing ones, and fails beyond its bounds.
func TestFillAddsWhatIsLacking(t *testing.T) {
	from, to := t.TempDir(), t.TempDir()
	write(t, filepath.Join(from, "hosts"), "packages'")
	write(t, filepath.Join(from, "tool/conf"), "x")
	testkit.OK(t, os.Symlink("conf", filepath.Join(from, "tool/link")))
	write(t, filepath.Join(to, "hosts"), "guest's")
	testkit.OK(t, fill(from, to))
	testkit.OK(t, fill(from, to))
	for name, want := range map[string]string{"hosts": "guest's", "tool/conf": "x", "tool/link": "x"} {
		testkit.Equal(t, name, string(testkit.Must(os.ReadFile(filepath.Join(to, name)))(t)), want)
	}
	none := filepath.Join(to, "none")
	testkit.OK(t, fill(filepath.Join(from, "none"), none))
	if st, err := os.Stat(none); err != nil || !st.IsDir() {
		t.Errorf("%v", err)
	}
	big := t.TempDir()
	f := testkit.Must(os.Create(filepath.Join(big, "big")))(t)
	testkit.OK(t, f.Truncate(fillBytes+1))
	testkit.OK(t, f.Close())
	if err := fill(big, t.TempDir()); err == nil || !strings.Contains(err.Error(), "more than 8 MB") {
		t.Errorf("got %v", err)
	}
	many := t.TempDir()
	for i := range fillFiles + 1 {
		write(t, filepath.Join(many, fmt.Sprint(i)), "")
	}
	if err := fill(many, t.TempDir()); err == nil || !strings.Contains(err.Error(), "2000 files") {
		t.Errorf("got %v", err)
	}
}

// What the guest's root gets after Mount is bound and linked, except for what Root has, vnic, and links to /usr.
func TestOnlyMissingLinksAreCopied(t *testing.T) {
	from, to := t.TempDir(), t.TempDir()
	for _, name := range []string{"bin", "vnic", "init", "new"} {
		testkit.OK(t, os.Symlink("there/"+name, filepath.Join(from, name)))
	}
	testkit.OK(t, os.Symlink("before", filepath.Join(to, "init")))
	for _, name := range []string{"etc/x", "file"} {
		write(t, filepath.Join(from, name), "")
	}
	testkit.OK(t, os.Mkdir(filepath.Join(to, "etc"), 0o755))
	testkit.OK(t, bindAll(from, to))
	var got []string
	for _, e := range testkit.Must(os.ReadDir(to))(t) {
		target, _ := os.Readlink(filepath.Join(to, e.Name()))
		got = append(got, e.Name()+" "+target)
	}
	testkit.Equal(t, "entries", strings.Join(got, ", "), "etc , init before, new there/new")
	testkit.ErrorIs(t, bindAll(filepath.Join(from, "none"), to), fs.ErrNotExist)
}

func TestMountRefusesWhatIsNoConfiguration(t *testing.T) {
	for _, c := range []Config{{}, {Images: []Image{{Serial: "x", At: "/ks"}}}} {
		if err := mount(t.Context(), c); err == nil || !strings.Contains(err.Error(), "first image") {
			t.Errorf("%+v: %v", c, err)
		}
	}
}

func TestToolIsNotStartedByHand(t *testing.T) {
	testkit.Equal(t, "status", applet(nil), 2)
	none := filepath.Join(t.TempDir(), "none")
	testkit.Equal(t, "status", applet([]string{none}), 126)
	write(t, none, "#!/bin/vnic-tool\n")
	testkit.Equal(t, "status", applet([]string{none}), 126)
}
