package guestimages

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/fstest"

	"vnic.dev/vnic/internal/testkit"
)

// fakeCheckout makes a checkout whose build fails if a file named "fails" is in its directory.
func fakeCheckout(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range map[string]string{
		"tools/debs.sh": "", "tools/uroot/go.mod": "module x\n", "tools/uroot/go.sum": "", "tools/uroot/sh/main.go": "",
		"tools/with-tools": "#!/bin/sh\nexec \"$@\"\n",
		"tools/uroot/build": "#!/bin/sh\nset -e\nmktemp > tmp\n" +
			"[ ! -e fails ] || { echo no network >&2; exit 1; }\necho x >> builds\n" +
			"printf 'built\\nsh\\n' > \"${1%.gz}.txt\"\necho program | gzip > \"$1\"\n",
	} {
		testkit.OK(t, os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755))
		testkit.OK(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o755))
	}
	return dir
}

// find returns the embedded userland rather than the cached one, and does not return one built from another go.mod.
func TestUserlandIsLookedForInItsOrder(t *testing.T) {
	f := userlandFinder{cacheDir: t.TempDir(), checkout: fakeCheckout(t)}
	if _, _, err := f.find(); !errors.Is(err, fs.ErrNotExist) {
		t.Fatalf("before a build: %v", err)
	}
	built := testkit.Must(f.build(t.Context(), nil))(t)
	testkit.Equal(t, "built", strings.Join(built.Names(), " "), "built sh")
	u, from, err := f.find()
	testkit.OK(t, err)
	testkit.Equal(t, "second place", from+" "+u.Names()[0], "in the cache built")
	f.carried = fstest.MapFS{userlandNames: {Data: []byte("carried\n")}, userlandFile: {}}
	u, from, err = f.find()
	testkit.OK(t, err)
	testkit.Equal(t, "first place", from+" "+u.Names()[0], "in this program carried")
	f.carried = nil
	testkit.OK(t, os.WriteFile(filepath.Join(f.checkout, "tools/uroot/go.mod"), []byte("module y\n"), 0o644))
	if _, _, err := f.find(); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the userland of another go.mod is taken: %v", err)
	}
}

// Concurrent calls of FindUserland build the userland only once.
func TestUserlandIsBuiltOnce(t *testing.T) {
	dir := fakeCheckout(t)
	t.Setenv(EnvSource, dir)
	var builds atomic.Int32
	o := UserlandOptions{CacheDir: t.TempDir(), Building: func() { builds.Add(1) }}
	find := func() {
		if u, err := FindUserland(t.Context(), o); err != nil || !u.Has("built") || u.Has("none") {
			t.Errorf("%v, %v", u, err)
		}
	}
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(find)
	}
	wg.Wait()
	o.Offline = true
	find()
	testkit.Equal(t, "builds", string(testkit.Must(os.ReadFile(filepath.Join(dir, "builds")))(t)), "x\n")
	testkit.Equal(t, "reported builds", builds.Load(), int32(1))
	left := testkit.Must(os.ReadDir(filepath.Join(o.CacheDir, "programs")))(t)
	testkit.Equal(t, "entries of the cache", len(left), 1)
}

func TestUserlandThatCannotBeBuilt(t *testing.T) {
	dir := fakeCheckout(t)
	t.Setenv(EnvSource, dir)
	o := UserlandOptions{CacheDir: t.TempDir(), Offline: true}
	if u, err := FindUserland(t.Context(), o); u != nil || !errors.Is(err, ErrNoUserland) {
		t.Errorf("offline: %v, %v", u, err)
	}
	from, there, err := LookUserland(o.CacheDir)
	testkit.OK(t, err)
	testkit.Equal(t, "offline", from, "none yet")
	testkit.Equal(t, "there", there, false)

	o.Offline = false
	testkit.OK(t, os.WriteFile(filepath.Join(dir, "fails"), nil, 0o644))
	if _, err := FindUserland(t.Context(), o); !errors.Is(err, ErrNoUserland) || !strings.Contains(err.Error(), "no network") {
		t.Errorf("a build that fails: %v", err)
	}
	tmp := string(testkit.Must(os.ReadFile(filepath.Join(dir, "tmp")))(t))
	left, _ := filepath.Glob(filepath.Join(o.CacheDir, "programs/.new-*"))
	if !strings.HasPrefix(tmp, o.CacheDir) || left != nil {
		t.Errorf("a build that fails: a temporary file is %s, and there are %v", tmp, left)
	}
	testkit.OK(t, os.Remove(filepath.Join(dir, "fails")))
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := FindUserland(gone, o); !errors.Is(err, context.Canceled) {
		t.Errorf("canceled: %v", err)
	}
	if u, err := FindUserland(t.Context(), o); err != nil || !u.Has("sh") {
		t.Errorf("%v, %v", u, err)
	}

	t.Setenv(EnvSource, t.TempDir())
	if _, err := FindUserland(t.Context(), o); !errors.Is(err, ErrNoUserland) {
		t.Errorf("$%s that is no checkout: %v", EnvSource, err)
	}
	t.Setenv(EnvSource, "")
	if u, err := FindUserland(t.Context(), o); err != nil || !u.Has("sh") || !strings.HasPrefix(u.InCache, "programs/u-root-") {
		t.Errorf("without a checkout, one that was imported: %v, %v", u, err)
	}
	o.CacheDir = t.TempDir()
	if u, err := FindUserland(t.Context(), o); u != nil || err != nil {
		t.Errorf("without a checkout: %v, %v", u, err)
	}
	if _, _, err := LookUserland(o.CacheDir); !errors.Is(err, ErrNoUserland) {
		t.Errorf("without a checkout: %v", err)
	}
}

func TestCheckoutOfAProgram(t *testing.T) {
	dir := fakeCheckout(t)
	exe := filepath.Join(dir, "bin/vnic")
	testkit.OK(t, os.Mkdir(filepath.Dir(exe), 0o755))
	testkit.OK(t, os.WriteFile(exe, nil, 0o755))
	testkit.Equal(t, "checkout", checkoutOf(exe), dir)
	script := filepath.Join(dir, userlandScript)
	if os.Geteuid() == 0 {
		testkit.OK(t, os.Chown(script, 65534, -1))
		testkit.Equal(t, "another user's script", checkoutOf(exe), "")
		testkit.OK(t, os.Chown(exe, 65534, -1))
		testkit.Equal(t, "script of the program's owner", checkoutOf(exe), dir)
	}
	testkit.OK(t, os.Remove(script))
	testkit.Equal(t, "no script", checkoutOf(exe), "")
}
