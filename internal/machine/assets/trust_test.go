package assets

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"vnic.dev/vnic/internal/testkit"
	"vnic.dev/vnic/internal/trusted"
)

// marked makes a fakeCache whose QEMU creates the file started, and returns the path of QEMU's tree below the
// cache.
func marked(t *testing.T) (o Options, tree, started string) {
	t.Helper()
	o, started = fakeCache(t), filepath.Join(t.TempDir(), "started")
	list := fakePackages[roleQEMU]
	tree = filepath.Join(roleQEMU, treeKey(list[0].Version, list))
	write(t, filepath.Join(o.CacheDir, tree, Loader), "#!/bin/sh\n: > "+started+"\necho QEMU emulator version 11.1.2\n")
	write(t, filepath.Join(o.CacheDir, tree, compiler), "")
	write(t, filepath.Join(o.CacheDir, guestImage), "")
	return o, tree, started
}

// Files of a marked cache: compiler is a path below QEMU's tree, guestImage below the cache.
const (
	compiler   = "usr/libexec/gcc/x86_64-linux-gnu/14/cc1"
	guestImage = "images/0.cpio"
)

// refuses checks that Fetch, FetchCached and Look refuse a cache and do not start its QEMU, and what the errors of
// Fetch and FetchCached say.
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

// places are paths of a marked cache.
func places(tree string) []string {
	return []string{"", "resolved.json", "qemu", "tmp", tree, filepath.Join(tree, "usr"), filepath.Join(tree, Libraries),
		filepath.Join(tree, Loader), filepath.Join(tree, "usr/bin/qemu-system-x86_64"),
		filepath.Join(tree, "usr/share/qemu"), filepath.Join(tree, Libraries, "libgcc_s.so.1.real"),
		filepath.Join(tree, filepath.Dir(compiler)), filepath.Join(tree, compiler), guestImage}
}

// Invariant: assets: vnic starts no program of a cache that belongs to a user other than its own
// and root, in part or completely; the error says what to do.
func TestCacheOfAnotherUserIsRefused(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Log("not root: cannot give anything away")
		return
	}
	_, tree, _ := marked(t)
	for _, name := range append(places(tree), filepath.Join(tree, Libraries, "libgcc_s.so.1"), "link") {
		o, _, started := marked(t)
		testkit.OK(t, os.MkdirAll(filepath.Join(o.CacheDir, "tmp"), 0o755))
		if name == "link" { // to our QEMU
			name = "qemu"
			file := filepath.Join(o.CacheDir, name)
			testkit.OK(t, os.Rename(file, file+"-mine"))
			testkit.OK(t, os.Symlink(file+"-mine", file))
		}
		testkit.OK(t, os.Lchown(filepath.Join(o.CacheDir, name), 65534, 65534))
		refuses(t, o, name, "belongs to user 65534", started)
	}
}

// Invariant: assets: vnic starts no program of a cache that all may write, or in whose trees a
// group may write a file; a group's permission on a directory is removed.
func TestCacheThatOthersWriteIsRefused(t *testing.T) {
	_, tree, _ := marked(t)
	for _, name := range places(tree) {
		o, _, started := marked(t)
		testkit.OK(t, os.MkdirAll(filepath.Join(o.CacheDir, "tmp"), 0o755))
		file := filepath.Join(o.CacheDir, name)
		st := testkit.Must(os.Stat(file))(t)
		testkit.OK(t, os.Chmod(file, st.Mode()|0o002))
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

// The files in a bundle's tree are checked by FetchBundle; Fetch checks only the tree's directory.
func TestBundleThatOthersWriteIsRefused(t *testing.T) {
	o := fakeCache(t)
	c, b := cache{o.CacheDir}, Bundle{Name: BundleCompiler, Packages: []string{"gcc"}}
	have := testkit.Must(c.load())(t)
	have[b.resolvedKey()] = &tree{Dir: BundleCompiler + "/x", Version: "1"}
	file := filepath.Join(c.dir, BundleCompiler, "x", compiler)
	write(t, file, "")
	testkit.OK(t, errors.Join(c.save(have), os.Chmod(file, 0o646)))
	r := testkit.Must(Fetch(t.Context(), o))(t)
	testkit.OK(t, r.Close())
	_, _, err := FetchBundle(t.Context(), o, b)
	testkit.ErrorIs(t, err, trusted.Err)
	testkit.ErrorSays(t, err, file)
	testkit.OK(t, os.Chmod(file, 0o644))
	tree, _, err := FetchBundle(t.Context(), o, b)
	testkit.OK(t, err)
	testkit.OK(t, tree.Close())
}

// The group's write permission on a directory of this user is removed, and the directory is used.
func TestGroupsDirectoryOfOursIsClosed(t *testing.T) {
	o, tree, _ := marked(t)
	places := []string{"", "qemu", tree, filepath.Join(tree, filepath.Dir(compiler))}
	for _, name := range places {
		testkit.OK(t, os.Chmod(filepath.Join(o.CacheDir, name), fs.ModeSetgid|fs.ModeSticky|0o775))
	}
	r, err := Fetch(t.Context(), o)
	testkit.OK(t, err)
	testkit.OK(t, r.Close())
	for _, name := range places {
		st := testkit.Must(os.Stat(filepath.Join(o.CacheDir, name)))(t)
		testkit.Equal(t, "mode of "+name, st.Mode(), fs.ModeDir|fs.ModeSetgid|fs.ModeSticky|0o755)
	}
}

// Files of another user are refused in a directory of this user that a group could write.
func TestClosedDirectoryIsNotTrustedForWhatItHas(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Log("not root: cannot give anything away")
		return
	}
	for _, name := range []string{Libraries + "/libaio.so.1", "usr/share/qemu/x/y", filepath.Dir(compiler) + "/as"} {
		o, tree, started := marked(t)
		file := filepath.Join(o.CacheDir, tree, name)
		write(t, file, "")
		testkit.OK(t, errors.Join(os.Lchown(file, 65534, 65534), os.Chmod(filepath.Dir(file), 0o775)))
		refuses(t, o, filepath.Join(tree, name), "belongs to user 65534", started)
		st := testkit.Must(os.Stat(filepath.Dir(file)))(t)
		testkit.Equal(t, "mode of its directory", st.Mode().Perm(), 0o755)
		refuses(t, o, filepath.Join(tree, name), "belongs to user 65534", started)
	}
}

// settle removes setgid bits, and write permissions of group and others.
func TestUnpackedTreesAreTheirOwners(t *testing.T) {
	c := cache{t.TempDir()}
	dir, file := filepath.Join(c.dir, "qemu/x/var/local"), filepath.Join(c.dir, "qemu/x/usr/games/score")
	write(t, file, "")
	testkit.OK(t, os.MkdirAll(dir, 0o755))
	testkit.OK(t, errors.Join(os.Chmod(dir, fs.ModeSetgid|0o777), os.Chmod(file, fs.ModeSetgid|0o666)))
	testkit.Must(settle(filepath.Join(c.dir, "qemu/x")))(t)
	for path, want := range map[string]fs.FileMode{dir: fs.ModeDir | 0o755, file: 0o644} {
		testkit.Equal(t, path, testkit.Must(os.Stat(path))(t).Mode(), want)
	}
	testkit.OK(t, c.checkTree("qemu/x"))
}

// Links of this user are followed.
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
	file := filepath.Join(o.CacheDir, "qemu") // the target is checked, too
	testkit.OK(t, os.Rename(file, file+"-open"))
	testkit.OK(t, os.Chmod(file+"-open", 0o777))
	testkit.OK(t, os.Symlink("qemu-open", file))
	refuses(t, o, "qemu-open", "open to others", started)
}

// The script tools/kernel accepts and refuses the same trees as checkTree.
func TestScriptsTrustWhatVnicTrusts(t *testing.T) {
	run := func(place string, mode fs.FileMode, owner int) (string, error) {
		dir := t.TempDir()
		tree := filepath.Join(dir, "tools/kernel-good")
		for _, f := range []string{".complete", "boot/vmlinuz-1", "usr/lib/modules/1/modules.dep"} {
			write(t, filepath.Join(tree, f), "")
		}
		testkit.OK(t, os.Symlink("vmlinuz-1", filepath.Join(tree, "boot/vmlinuz")))
		file := filepath.Join(dir, place)
		if mode != 0 {
			testkit.OK(t, os.Chmod(file, mode))
		}
		testkit.OK(t, os.Lchown(file, owner, -1))
		cmd := exec.Command("../../../tools/kernel", "good")
		cmd.Env = append(os.Environ(), EnvCache+"="+dir, EnvMirror+"=file:"+dir, EnvKeyring+"=/dev/null")
		out, err := cmd.CombinedOutput()
		trust := cache{dir}.checkTree("tools/kernel-good")
		if (trust == nil) != (err == nil) {
			t.Errorf("%s, %v: vnic: %v; the script: %v, %s", place, mode, trust, err, out)
		}
		if err == nil {
			st := testkit.Must(os.Lstat(file))(t)
			testkit.Equal(t, place, st.Mode(), fs.ModeDir|mode&^0o020)
		}
		return string(out), err
	}
	const file = "tools/kernel-good/boot/vmlinuz-1"
	dirs := []string{"", "tools", "tools/kernel-good", "tools/kernel-good/usr/lib/modules"}
	for _, place := range dirs {
		if out, err := run(place, fs.ModeSetgid|fs.ModeSticky|0o775, os.Geteuid()); err != nil {
			t.Errorf("%s, which a group may write: %s", place, out)
		}
	}
	for _, place := range append(dirs, file) {
		out, err := run(place, 0o777, os.Geteuid())
		if err == nil || !strings.Contains(out, place+": another user's, or others may write it") {
			t.Errorf("%q, which all may write: %v, %s", place, err, out)
		}
		if os.Geteuid() == 0 {
			if out, err := run(place, 0, 65534); err == nil {
				t.Errorf("%s, which is another user's: %s", place, out)
			}
		}
	}
	if out, err := run(file, 0o664, os.Geteuid()); err == nil {
		t.Errorf("a file that a group may write: %s", out)
	}
	if os.Geteuid() == 0 {
		if out, err := run("tools/kernel-good/boot/vmlinuz", 0, 65534); err == nil {
			t.Errorf("a link that is another user's: %s", out)
		}
	}
}
