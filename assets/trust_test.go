package assets

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"vnic.dev/vnic/internal/testkit"
	"vnic.dev/vnic/internal/trusted"
)

// marked is a fakeCache whose QEMU notes that it was started, in a file that is not there yet, and the path of that
// tree below the cache.
func marked(t *testing.T) (o Options, tree, started string) {
	t.Helper()
	o, started = fakeCache(t), filepath.Join(t.TempDir(), "started")
	list := fakePackages[roleQEMU]
	tree = filepath.Join(roleQEMU, treeKey(list[0].Version, list))
	write(t, filepath.Join(o.CacheDir, tree, loader), "#!/bin/sh\n: > "+started+"\necho QEMU emulator version 11.1.2\n")
	return o, tree, started
}

// refuses sees that nothing of a cache is handed out or started, and that the user is told of what, why and what to do.
func refuses(t *testing.T, o Options, name, why, started string) {
	t.Helper()
	says := func(err error) {
		t.Helper()
		var m *Missing
		if !errors.As(err, &m) || !errors.Is(err, trusted.Err) {
			t.Errorf("%s: %v", name, err)
			return
		}
		for _, part := range []string{filepath.Join(o.CacheDir, name) + " (", why, EnvCache} {
			testkit.ErrorSays(t, err, part)
		}
	}
	_, err := Fetch(t.Context(), o)
	says(err)
	_, err = FetchCached(t.Context(), o)
	says(err)
	s := Look(t.Context(), o)
	if s.Ready || len(s.QEMU.Args) > 0 {
		t.Errorf("%s: found %v", name, s.QEMU.Args)
	}
	if exists(started) {
		t.Errorf("%s: QEMU was started", name)
	}
}

// places are what another user could have to do with in a marked cache.
func places(tree string) []string {
	return []string{"", "resolved.json", "qemu", "tmp", tree, filepath.Join(tree, "usr"), filepath.Join(tree, Libraries),
		filepath.Join(tree, loader), filepath.Join(tree, "usr/bin/qemu-system-x86_64"),
		filepath.Join(tree, "usr/share/qemu")}
}

// Invariant: assets: Of a cache that is another user's, in part or all, nothing is started: who starts vnic is told
// what to do.
func TestCacheOfAnotherUserIsRefused(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Log("not root: cannot give anything away")
		return
	}
	_, tree, _ := marked(t)
	for _, name := range append(places(tree), "link") {
		o, _, started := marked(t)
		testkit.OK(t, os.MkdirAll(filepath.Join(o.CacheDir, "tmp"), 0o755))
		if name == "link" { // to a QEMU of ours, by another
			name = "qemu"
			at := filepath.Join(o.CacheDir, name)
			testkit.OK(t, os.Rename(at, at+"-mine"))
			testkit.OK(t, os.Symlink(at+"-mine", at))
		}
		testkit.OK(t, os.Lchown(filepath.Join(o.CacheDir, name), 65534, 65534))
		refuses(t, o, name, "belongs to user 65534", started)
	}
}

// Invariant: assets: Of a cache that others may write, in part or all, nothing is started.
func TestCacheThatOthersWriteIsRefused(t *testing.T) {
	_, tree, _ := marked(t)
	for _, name := range places(tree) {
		o, _, started := marked(t)
		testkit.OK(t, os.MkdirAll(filepath.Join(o.CacheDir, "tmp"), 0o755))
		at := filepath.Join(o.CacheDir, name)
		st := testkit.Must(os.Stat(at))(t)
		testkit.OK(t, os.Chmod(at, st.Mode()|0o002))
		refuses(t, o, name, "open to others, mode 0", started)
	}
	o, _, started := marked(t)
	o.CacheDir += "/open"
	testkit.OK(t, os.Mkdir(o.CacheDir, 0o755))
	testkit.OK(t, os.Chmod(o.CacheDir, 0o1777))
	refuses(t, o, "", "open to others, mode 0777", started)
	_, err := Import(t.Context(), o, bytes.NewReader(nil))
	testkit.ErrorIs(t, err, trusted.Err)
	_, _, err = FetchBundle(t.Context(), o, Bundle{Name: BundleTests, Packages: []string{"x"}})
	testkit.ErrorIs(t, err, trusted.Err)
}

// Under a umask of 002 a directory of the cache that a script made is open to the user's group.
func TestGroupsDirectoryOfOursIsClosed(t *testing.T) {
	o, tree, _ := marked(t)
	for _, name := range []string{"", "qemu", tree} {
		testkit.OK(t, os.Chmod(filepath.Join(o.CacheDir, name), 0o775))
	}
	r, err := Fetch(t.Context(), o)
	testkit.OK(t, err)
	testkit.OK(t, r.Close())
	for _, name := range []string{"", "qemu", tree} {
		st := testkit.Must(os.Stat(filepath.Join(o.CacheDir, name)))(t)
		testkit.Equal(t, "mode of "+name, st.Mode().Perm(), fs.FileMode(0o755))
	}
}

// A link of ours is followed: to a cache on a larger disk, or to a QEMU that several caches have.
func TestLinksOfOursAreFollowed(t *testing.T) {
	o, _, _ := marked(t)
	testkit.OK(t, os.Rename(filepath.Join(o.CacheDir, "qemu"), filepath.Join(o.CacheDir, "other")))
	testkit.OK(t, os.Symlink("other", filepath.Join(o.CacheDir, "qemu")))
	link := filepath.Join(t.TempDir(), "link")
	testkit.OK(t, os.Symlink(o.CacheDir, link))
	o.CacheDir = link
	r, err := Fetch(t.Context(), o)
	testkit.OK(t, err)
	testkit.OK(t, r.Close())
	if !strings.HasPrefix(r.QEMU.Args[0], link+"/qemu/") {
		t.Error(r.QEMU.Args[0])
	}
	o, _, started := marked(t)
	at := filepath.Join(o.CacheDir, "qemu") // what a link leads to is looked at
	testkit.OK(t, os.Rename(at, at+"-open"))
	testkit.OK(t, os.Chmod(at+"-open", 0o777))
	testkit.OK(t, os.Symlink("qemu-open", at))
	refuses(t, o, "qemu-open", "open to others", started)
}
