package assets

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/internal/testkit"
)

const (
	treeA = "qemu/11.1.2-0123456789ab"
	treeB = "kernel/7.2.12-1-0123456789ab"
	image = "images/00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff.cpio"
)

// filled makes a cache with one entry of each of five kinds, and files that are no entries.
func filled(t *testing.T) cache {
	t.Helper()
	c := cache{filepath.Join(t.TempDir(), "cache")}
	for _, name := range []string{treeA + "/usr/bin/x", treeB + "/boot/x", image, "tools/go/.complete", "tools/go/x",
		"tmp/fetch-1/x",
		"lock", "kvm.json", "qemu/mine/x", "images/holiday.jpg", "tools/hammer/x", "tmp/x", "letters/x"} {
		write(t, filepath.Join(c.dir, name), strings.Repeat("x", 5000))
	}
	testkit.OK(t, c.save(resolved{roleQEMU: {Dir: treeA}, roleKernel: {Dir: treeB}}))
	return c
}

func (c cache) names(t *testing.T) (names []string) {
	t.Helper()
	_, list, err := ListCache(Options{CacheDir: c.dir})
	testkit.OK(t, err)
	for _, e := range list {
		names = append(names, e.Name)
	}
	return names
}

func all(list []CacheEntry) ([]CacheEntry, error) { return list, nil }

func only(names ...string) func([]CacheEntry) ([]CacheEntry, error) {
	return func(list []CacheEntry) ([]CacheEntry, error) { return Choose(list, names) }
}

func TestCacheIsListed(t *testing.T) {
	testkit.LeavesNothing(t)
	c := filled(t)
	commands := "programs/u-root-" + strings.Repeat("0f", 32)
	write(t, filepath.Join(c.dir, commands, "u-root.txt"), "sh")
	dir, list, err := ListCache(Options{CacheDir: c.dir})
	if err != nil || dir != c.dir {
		t.Fatal(dir, err)
	}
	want := []string{treeA, treeB, image, commands, "tools/go", "tmp/fetch-1"}
	if got := c.names(t); !slices.Equal(got, want) {
		t.Errorf("%q, not %q", got, want)
	}
	for _, e := range list {
		if e.Bytes < 5000 || e.Used.IsZero() || e.InUse || e.Current != (e.Name == treeA || e.Name == treeB) ||
			e.Partial != (e.Kind == "tmp") {
			t.Errorf("%+v", e)
		}
	}
	if _, list, err := ListCache(Options{CacheDir: filepath.Join(c.dir, "none")}); err != nil || list != nil {
		t.Errorf("a cache that is not there: %v, %v", list, err)
	}
}

// Invariant: assets: Cache entries that are seen in use are not removed, and RemoveCached removes
// nothing during a fetch.
func TestAllThatIsRemovedIsOurs(t *testing.T) {
	testkit.LeavesNothing(t)
	c := filled(t)
	removed, err := RemoveCached(t.Context(), Options{CacheDir: c.dir}, all)
	if err != nil || len(removed) != 5 || c.names(t) != nil {
		t.Errorf("removed %v, left %q: %v", removed, c.names(t), err)
	}
	for _, name := range []string{"lock", "qemu/mine/x", "images/holiday.jpg", "tools/hammer/x", "tmp/x", "letters/x"} {
		if _, err := os.Stat(filepath.Join(c.dir, name)); err != nil {
			t.Error(err)
		}
	}
	if r, err := c.load(); err != nil || len(r) != 0 {
		t.Errorf("what is gone is still known: %+v, %v", r, err)
	}
}

func TestCacheNamesAreUnderstood(t *testing.T) {
	list := []CacheEntry{{Name: treeA, Kind: "qemu"}, {Name: "qemu/11.1.2-bb", Kind: "qemu"},
		{Name: image, Kind: "images"}}
	for args, want := range map[string]string{
		treeA: treeA, treeA + "/": treeA, "images/0011": image, "0011": image, "qemu": treeA + " qemu/11.1.2-bb",
		image + " images": image, "": "error", "qemu/11": "error", "../qemu": "error", "none": "error", "images/ff": "error",
	} {
		chosen, err := Choose(list, strings.Split(args, " "))
		var names []string
		for _, e := range chosen {
			names = append(names, e.Name)
		}
		if got := strings.Join(names, " "); err == nil && got != want || (err != nil) != (want == "error") {
			t.Errorf("%q: %q, %v; want %q", args, got, err, want)
		}
	}
}

// Invariant: assets: Cache entries that are seen in use are not removed, and RemoveCached removes
// nothing during a fetch.
func TestWhatIsInUseStays(t *testing.T) {
	testkit.LeavesNothing(t)
	c := filled(t)
	o := Options{CacheDir: c.dir}
	fd := testkit.Must(hold(filepath.Join(c.dir, treeA)))(t)
	program := filepath.Join(c.dir, "tools/go/sleep")
	b, err := os.ReadFile("/bin/sleep")
	if err == nil {
		err = os.WriteFile(program, b, 0o755)
	}
	testkit.OK(t, err)
	cmd := exec.Command(program, "1000")
	testkit.OK(t, cmd.Start())
	_, list, err := ListCache(o)
	for _, e := range list {
		if e.InUse != (e.Name == treeA || e.Name == "tools/go") || (e.Name == "tools/go") != slices.Contains(e.PIDs,
			cmd.Process.Pid) {
			t.Errorf("%+v", e)
		}
	}
	testkit.NoError(t, err)
	removed, err := RemoveCached(t.Context(), o, all)
	if !errors.Is(err, ErrInUse) || len(removed) != 3 || !strings.Contains(err.Error(), "(sleep): end it first") {
		t.Errorf("removed %v: %v", removed, err)
	}
	if got := c.names(t); !slices.Equal(got, []string{treeA, "tools/go"}) {
		t.Errorf("left %q", got)
	}
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	testkit.OK(t, unix.Close(fd))
	if _, err := RemoveCached(t.Context(), o, all); err != nil || c.names(t) != nil {
		t.Errorf("left %q: %v", c.names(t), err)
	}
}

// Invariant: assets: Cache entries that are seen in use are not removed, and RemoveCached removes
// nothing during a fetch.
func TestNothingIsRemovedDuringAFetch(t *testing.T) {
	testkit.LeavesNothing(t)
	c := filled(t)
	unlock := testkit.Must(c.lock(t.Context(), func() error { return nil }))(t)
	removed, err := RemoveCached(t.Context(), Options{CacheDir: c.dir}, all)
	if !errors.Is(err, ErrInUse) || removed != nil || len(c.names(t)) != 5 {
		t.Errorf("removed %v: %v", removed, err)
	}
	unlock()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	testkit.ErrorIs(t, testkit.Err(RemoveCached(ctx, Options{CacheDir: c.dir}, all)), context.Canceled, "cancelled")
}

// Invariant: assets: Listing and removing entries of the cache follows no links out of it.
func TestLinksOutOfTheCacheAreNotFollowed(t *testing.T) {
	testkit.LeavesNothing(t)
	c := filled(t)
	outside := t.TempDir()
	write(t, filepath.Join(outside, "precious-0123456789ab/x"), "")
	kernels := filepath.Join(c.dir, "kernel")
	inside := filepath.Join(c.dir, treeA, "usr/escape")
	for _, err := range []error{
		os.RemoveAll(kernels), os.Symlink(outside, kernels), os.Symlink(outside, inside),
		os.Symlink(filepath.Join(outside, "precious-0123456789ab"), filepath.Join(c.dir, "qemu/link-0123456789ab")),
	} {
		testkit.OK(t, err)
	}
	_, list, err := ListCache(Options{CacheDir: c.dir})
	testkit.OK(t, err)
	links := map[string]string{}
	for _, e := range list {
		if e.Link != "" {
			links[e.Name] = e.Link
		}
	}
	if len(links) != 2 || links["kernel"] != outside || links["qemu/link-0123456789ab"] == "" {
		t.Errorf("%v", links)
	}
	if _, err := RemoveCached(t.Context(), Options{CacheDir: c.dir}, all); err != nil || c.names(t) != nil {
		t.Errorf("left %q: %v", c.names(t), err)
	}
	if _, err := os.Stat(filepath.Join(outside, "precious-0123456789ab/x")); err != nil {
		t.Error(err)
	}
	for _, gone := range []string{kernels, filepath.Join(c.dir, "qemu/link-0123456789ab")} {
		testkit.ErrorIs(t, testkit.Err(os.Lstat(gone)), os.ErrNotExist, "%s", gone)
	}
}

func TestCacheThatIsNotThereIsNotMade(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "none")
	if _, err := RemoveCached(t.Context(), Options{CacheDir: dir}, all); err != nil {
		t.Error(err)
	}
	if _, err := RemoveCached(t.Context(), Options{CacheDir: dir}, only("qemu")); err == nil {
		t.Error("something was found in it")
	}
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
}

// A fetch removes old trees, but for those from which machines run.
func TestOldTreesThatAreInUseStay(t *testing.T) {
	c := filled(t)
	dir := filepath.Join(c.dir, filepath.Dir(treeA))
	fd := testkit.Must(hold(filepath.Join(c.dir, treeA)))(t)
	left := func() (names []string) {
		for _, e := range testkit.Must(os.ReadDir(dir))(t) {
			names = append(names, e.Name())
		}
		return names
	}
	for _, name := range left() {
		testkit.OK(t, os.Chtimes(filepath.Join(dir, name), time.Unix(1, 0), time.Unix(1, 0)))
	}
	Prune(dir, time.Hour, "")
	testkit.Equal(t, "left", strings.Join(left(), " "), filepath.Base(treeA))
	testkit.OK(t, unix.Close(fd))
	Prune(dir, time.Hour, "")
	testkit.Equal(t, "left", strings.Join(left(), " "), "")
}

func TestHeldTreeIsTheOneThatIsThere(t *testing.T) {
	testkit.LeavesNothing(t)
	testkit.ErrorIs(t, testkit.Err(hold(filepath.Join(t.TempDir(), "none"))), os.ErrNotExist, "a tree that is not there")
	c := filled(t)
	fd := testkit.Must(hold(filepath.Join(c.dir, treeB)))(t)
	again, err := hold(filepath.Join(c.dir, treeB))
	testkit.NoError(t, errors.Join(err, unix.Close(fd), unix.Close(again)))
}
