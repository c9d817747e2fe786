package assets

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"vnic.dev/vnic/internal/testkit"
)

// fetched returns QEMU and a kernel from the user's cache, into which it fetches them if they are missing.
func fetched(t *testing.T) *Resolved {
	t.Helper()
	if testing.Short() {
		t.Skip("needs QEMU and a kernel, and the network the first time")
	}
	step := ""
	r, err := Fetch(t.Context(), Options{IgnoreSystemQEMU: true, Progress: func(p Progress) {
		if now := p.Step + " " + p.What; now != step {
			step = now
			t.Log(now, p.Total)
		}
	}})
	testkit.OK(t, err)
	t.Cleanup(func() {
		testkit.NoError(t, r.Close())
	})
	return r
}

func TestFetchedWorksOffline(t *testing.T) {
	r := fetched(t)
	again := testkit.Must(Fetch(t.Context(), Options{IgnoreSystemQEMU: true, Offline: true}))(t)
	if again.QEMU.Args[0] != r.QEMU.Args[0] || again.Kernel != r.Kernel {
		t.Errorf("%+v, then %+v", r, again)
	}
	version, err := again.QEMU.version(t.Context())
	if err != nil || version != again.QEMU.Version {
		t.Errorf("QEMU says it is %q, %v; its packages say %q", version, err, again.QEMU.Version)
	}
	if v, err := kernelVersion(again.Kernel.Image); err != nil || v != again.Kernel.Version {
		t.Errorf("kernel says it is %q, %v; its modules say %q", v, err, again.Kernel.Version)
	}
	if _, err := unpacked(testkit.Must(os.ReadFile(again.Kernel.Image))(t)); err != nil {
		t.Error("the kernel cannot be unpacked beforehand: guests boot later:", err)
	}
	for _, line := range again.Untested {
		t.Log(line)
	}
}

// withOldQEMU makes a fakeCache whose QEMU has the version 10.0.2, which lacks vfio-user.
func withOldQEMU(t *testing.T) Options {
	t.Helper()
	o := fakeCache(t)
	c := cache{o.CacheDir}
	have := testkit.Must(c.load())(t)
	have[roleQEMU].Version = "1:10.0.2+ds-1"
	testkit.OK(t, c.save(have))
	return o
}

func TestOldQEMUInTheCacheIsReplaced(t *testing.T) {
	o := withOldQEMU(t)
	o.Offline = false
	t.Setenv("PATH", t.TempDir()) // without apt in PATH, fetching fails
	r := testkit.Must(Fetch(t.Context(), o))(t)
	testkit.Equal(t, "QEMU", r.QEMU.Version, "10.0.2")
	testkit.NoError(t, r.Close())
	o.VFIOUser = true
	testkit.ErrorIs(t, testkit.Err(Fetch(t.Context(), o)), ErrNoApt)
}

func TestKernelAloneNeedsNoQEMU(t *testing.T) {
	k := fetched(t).Kernel
	r, err := Fetch(t.Context(), Options{KernelOnly: true, Offline: true, CacheDir: t.TempDir(), Kernel: k.Image,
		Modules: k.Modules})
	if err != nil || r.Kernel.Version != k.Version || r.QEMU.Args != nil || len(r.Untested) > 1 {
		t.Errorf("%+v, %v", r, err)
	}
}

// needsApt skips the test if PATH lacks apt-get or dpkg-deb, and clears variables that a fetch reads.
func needsApt(t *testing.T) {
	t.Helper()
	for _, tool := range []string{"apt-get", "dpkg-deb"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skip(err)
		}
	}
	for _, e := range []string{EnvQEMU, EnvKernel, EnvModules, EnvCache, EnvMirror, EnvKeyring, "http_proxy"} {
		t.Setenv(e, "")
	}
}

func from(t *testing.T, mirror string) Options {
	keyring := filepath.Join(t.TempDir(), "keys.gpg")
	write(t, keyring, "")
	return Options{CacheDir: t.TempDir(), IgnoreSystemQEMU: true, Mirror: mirror, Keyring: keyring}
}

func empty(t *testing.T, dir string) {
	t.Helper()
	if entries, _ := os.ReadDir(dir); len(entries) != 0 {
		t.Errorf("left in %s: %v", dir, entries)
	}
}

func TestNoNetworkIsSaid(t *testing.T) {
	if testing.Short() {
		t.Skip("apt tries four times, for seven seconds")
	}
	needsApt(t)
	testkit.LeavesNothing(t)
	s := httptest.NewServer(http.NotFoundHandler())
	s.Close() // nothing listens on its port
	o := from(t, s.URL+"/debian")
	_, err := Fetch(t.Context(), o)
	var m *Missing
	if !errors.Is(err, ErrNoNetwork) || !errors.As(err, &m) {
		t.Errorf("got %v", err)
	}
	empty(t, filepath.Join(o.CacheDir, "tmp"))
}

func TestMirrorWithoutASuiteIsSaid(t *testing.T) {
	needsApt(t)
	s := httptest.NewServer(http.NotFoundHandler())
	defer s.Close()
	_, err := Fetch(t.Context(), from(t, s.URL+"/debian"))
	if err == nil || errors.Is(err, ErrNoNetwork) {
		t.Errorf("got %v", err)
	}
}

func TestCancelledFetchLeavesNothing(t *testing.T) {
	needsApt(t)
	testkit.LeavesNothing(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	s := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		cancel() // apt runs and has sent a request
		<-r.Context().Done()
	}))
	defer s.Close()
	o := from(t, s.URL+"/debian")
	if _, err := Fetch(ctx, o); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	empty(t, filepath.Join(o.CacheDir, "tmp"))
}

func TestCacheIsHeldByOneAtATime(t *testing.T) {
	c := cache{t.TempDir()}
	var g errgroup.Group
	var mu sync.Mutex
	holders, most := 0, 0
	for range 4 {
		g.Go(func() error {
			unlock, err := c.lock(t.Context(), func() error { return nil })
			if err != nil {
				return err
			}
			mu.Lock()
			holders++
			most = max(most, holders)
			mu.Unlock()
			c.clean()
			mu.Lock()
			holders--
			mu.Unlock()
			unlock()
			return nil
		})
	}
	if err := g.Wait(); err != nil || most != 1 {
		t.Errorf("%d at a time, %v", most, err)
	}
}

func TestWaitForTheCacheEndsWithItsContext(t *testing.T) {
	testkit.LeavesNothing(t)
	c := cache{t.TempDir()}
	unlock, err := c.lock(t.Context(), func() error { return nil })
	testkit.OK(t, err)
	defer unlock()
	ctx, cancel := context.WithCancel(t.Context())
	waiting := func() error {
		cancel()
		return nil
	}
	if _, err := c.lock(ctx, waiting); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}

func TestCacheForgetsWhatIsNotThere(t *testing.T) {
	c := cache{t.TempDir()}
	write(t, filepath.Join(c.dir, "tmp/fetch-1/x"), "left by a run that was killed")
	write(t, filepath.Join(c.dir, "kernel/a/x"), "")
	in := resolved{roleQEMU: {Dir: "qemu/gone"}, roleKernel: {Dir: "kernel/a", Version: "1"}}
	testkit.OK(t, c.save(in))
	out, err := c.load()
	if err != nil || out[roleQEMU] != nil || out[roleKernel] == nil || out[roleKernel].Version != "1" {
		t.Errorf("%+v, %v", out, err)
	}
	in[roleKernel].Dir = "../elsewhere"
	testkit.OK(t, c.save(in))
	if out, err = c.load(); err != nil || out[roleKernel] != nil {
		t.Errorf("a tree outside the cache: %+v, %v", out, err)
	}
	for _, text := range []string{"not json", "null", `{"kernel": null}`} {
		write(t, filepath.Join(c.dir, "resolved.json"), text)
		if out, err = c.load(); err != nil || out == nil || len(out) != 0 {
			t.Errorf("a broken file, %s: %+v, %v", text, out, err)
		}
	}
	c.clean()
	empty(t, filepath.Join(c.dir, "tmp"))
}

func TestProgressIsShown(t *testing.T) {
	for want, p := range map[string]Progress{
		"download qemu, 45 %": {Step: "download", What: "qemu", Done: 90, Total: 200},
		"unpack x, 3 steps":   {Step: "unpack", What: "x", Done: 3},
		"update sid":          {Step: "update", What: "sid"},
	} {
		testkit.Equal(t, "progress", p.String(), want)
	}
}

func TestNoSpaceIsSaid(t *testing.T) {
	c := cache{filepath.Join(t.TempDir(), "not", "yet")}
	testkit.NoError(t, c.checkSpace(1))
	if err := c.checkSpace(1 << 60); !errors.Is(err, ErrNoSpace) {
		t.Errorf("got %v", err)
	}
}

// Invariant: vnic: A mistake gives one message that says what to do, and leaves nothing.
func TestErrorsOfTheCacheHaveAFix(t *testing.T) {
	openError := func(name string, err error) error {
		return fmt.Errorf("guest image: %w", &fs.PathError{Op: "open", Path: name, Err: err})
	}
	for name, c := range map[string]struct{ err, want error }{
		"full":      {openError("/cache/images", unix.ENOSPC), ErrNoSpace},
		"limited":   {fmt.Errorf("write: %w", unix.EFBIG), ErrNoSpace},
		"read-only": {openError("/cache/images", unix.EROFS), ErrNoCache},
		"a link":    {&os.LinkError{Op: "rename", Old: "/x", New: "/cache/x", Err: unix.EACCES}, ErrNoCache},
	} {
		var m *Missing
		if err := CacheError("/cache", c.err); !errors.As(err, &m) || !errors.Is(err, c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, err := range []error{nil, errors.New("other"), openError("/modules/x.ko", unix.EACCES),
		openError("/cache2/x", unix.EACCES),
		&Missing{Err: openError("", unix.ENOSPC)}} {
		if got := CacheError("/cache", err); got != err {
			t.Errorf("%v became %v", err, got)
		}
	}
}

func TestCacheThatCannotBeMadeIsSaid(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	write(t, file, "")
	if _, err := (cache{filepath.Join(file, "vnic")}).lock(t.Context(), nil); !errors.Is(err, ErrNoCache) {
		t.Errorf("got %v", err)
	}
}
