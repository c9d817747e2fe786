package guestimages

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/internal/proc"
)

// EnvSource is the environment variable that names a checkout of vnic in which to build the userland.
const EnvSource = "VNIC_SOURCE"

// ErrNoUserland means that there is no userland: none was found, and none was or can be built.
var ErrNoUserland = errors.New("no u-root commands")

// UserlandMegabytes is about how many MB a build of the userland may download.
const UserlandMegabytes = 60

const userlandScript = "tools/uroot/build"

var userlandSources = []string{userlandScript, "tools/uroot/go.mod", "tools/uroot/go.sum", "tools/uroot/sh/main.go"}

// UserlandOptions are the options of FindUserland.
type UserlandOptions struct {
	CacheDir string
	Offline  bool   // do not build, because a build may download modules
	Building func() // called before a build; may be nil
}

// FindUserland returns the embedded userland, else one in the cache, else one that it builds from a checkout. If there
// is no checkout, either, it returns nil and no error. If none is embedded, the error wraps [ErrNoUserland] if the
// checkout lacks a source file, or if its userland is not in the cache and Offline is set or the build fails; if ctx
// ends during the build, the error is ctx's.
func FindUserland(ctx context.Context, o UserlandOptions) (*Userland, error) {
	f := userlandFinder{carried: carried, checkout: checkout(), cacheDir: o.CacheDir}
	u, _, err := f.find()
	switch {
	case !errors.Is(err, fs.ErrNotExist):
		return u, err
	case f.checkout == "":
		return nil, nil
	case o.Offline:
		return nil, fmt.Errorf("%w: they are not built yet, and building them needs the network", ErrNoUserland)
	}
	if u, err = f.build(ctx, o.Building); ctx.Err() != nil {
		return nil, ctx.Err()
	} else if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNoUserland, err)
	}
	return u, nil
}

// LookUserland returns, in words, where the userland is that [FindUserland] finds, and whether it is there and
// readable. If FindUserland would have to build it, there is false and err is nil. If none is embedded, the error wraps
// [ErrNoUserland] if none is in the cache and there is no checkout, or if the checkout lacks a source file.
func LookUserland(cacheDir string) (from string, there bool, err error) {
	f := userlandFinder{carried: carried, checkout: checkout(), cacheDir: cacheDir}
	switch _, from, err := f.find(); {
	case !errors.Is(err, fs.ErrNotExist):
		return from, err == nil, err
	case f.checkout == "":
		return "", false, ErrNoUserland
	}
	return "none yet", false, nil
}

type userlandFinder struct {
	carried  fs.FS // embedded in this binary; nil: nothing
	cacheDir string
	checkout string // directory of the checkout; "": none
}

// find returns the embedded userland, else the one in the cache, and in from the place in words. If there is neither,
// its error wraps fs.ErrNotExist, or ErrNoUserland if the checkout lacks a source file.
func (f userlandFinder) find() (u *Userland, from string, err error) {
	if f.carried != nil {
		if u, err = readUserland(f.carried); !errors.Is(err, fs.ErrNotExist) {
			return u, "in this program", err
		}
	}
	dir, err := f.cached()
	if err == nil {
		u, err = readUserland(os.DirFS(dir))
	}
	if p := (*fs.PathError)(nil); errors.As(err, &p) { // os.DirFS leaves its directory out of errors
		err = &fs.PathError{Op: p.Op, Path: filepath.Join(dir, p.Path), Err: p.Err}
	}
	if err == nil {
		u.InCache = filepath.Join(userlandDir, filepath.Base(dir))
	}
	return u, "in the cache", err
}

const userlandDir = "programs"

// cached returns the directory in the cache for the checkout's userland; the directory may not exist. Without a
// checkout it returns the last modified one of all userlands in the cache, or fs.ErrNotExist.
func (f userlandFinder) cached() (string, error) {
	if f.checkout == "" {
		newest, dir := time.Time{}, ""
		dirs, _ := filepath.Glob(filepath.Join(f.cacheDir, userlandDir, "u-root-*"))
		for _, d := range dirs {
			if st, err := os.Stat(d); err == nil && st.ModTime().After(newest) {
				newest, dir = st.ModTime(), d
			}
		}
		if dir == "" {
			return "", fs.ErrNotExist
		}
		return dir, nil
	}
	h := sha256.New()
	for _, name := range userlandSources {
		b, err := os.ReadFile(filepath.Join(f.checkout, name))
		if err != nil {
			return "", fmt.Errorf("%w: %s is no checkout of vnic: %v", ErrNoUserland, f.checkout, err)
		}
		_, _ = fmt.Fprintf(h, "%s %d %x\n", name, len(b), sha256.Sum256(b))
	}
	return filepath.Join(f.cacheDir, userlandDir, fmt.Sprintf("u-root-%x", h.Sum(nil))), nil
}

func (f userlandFinder) build(ctx context.Context, building func()) (*Userland, error) {
	final, err := f.cached()
	if err != nil {
		return nil, err
	}
	programs := filepath.Dir(final)
	if err := os.MkdirAll(programs, 0o755); err != nil {
		return nil, err
	}
	unlock, err := lockDir(ctx, programs)
	if err != nil {
		return nil, err
	}
	defer unlock()
	if u, _, err := f.find(); !errors.Is(err, fs.ErrNotExist) {
		return u, err
	}
	if building != nil {
		building()
	}
	work, err := os.MkdirTemp(programs, ".new-")
	if err != nil {
		return nil, err
	}
	defer proc.Sweep(work)()
	made, tmp := filepath.Join(work, "made"), filepath.Join(work, "tmp")
	if err := errors.Join(os.Mkdir(made, 0o755), os.Mkdir(tmp, 0o755)); err != nil {
		return nil, err
	}
	env := []string{"VNIC_CACHE=" + f.cacheDir, "VNIC_TOOLS_TMP=" + tmp, "TMPDIR=" + tmp}
	_, err = proc.Command{Dir: f.checkout, Env: env}.Run(ctx,
		filepath.Join(f.checkout, "tools/with-tools"), userlandScript, filepath.Join(made, userlandFile))
	if err == nil {
		err = os.Rename(made, final)
	}
	if err != nil {
		return nil, err
	}
	u, _, err := f.find()
	return u, err
}

// lockDir waits until it has locked a directory or ctx ends. If the file system has no locks, it takes none.
func lockDir(ctx context.Context, dir string) (unlock func(), err error) {
	d, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	tick := time.NewTicker(100 * time.Millisecond) // polls, because a waiting flock cannot be cancelled
	defer tick.Stop()
	for {
		switch err := unix.Flock(int(d.Fd()), unix.LOCK_EX|unix.LOCK_NB); {
		case err == nil, errors.Is(err, unix.ENOLCK), errors.Is(err, unix.EOPNOTSUPP):
			return func() { _ = d.Close() }, nil
		case !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR):
			return nil, errors.Join(&os.PathError{Op: "lock", Path: dir, Err: err}, d.Close())
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil, errors.Join(ctx.Err(), d.Close())
		}
	}
}

// checkout returns $VNIC_SOURCE, unchecked, or if it is empty the checkout whose bin directory has this program, or "".
func checkout() string {
	if dir := os.Getenv(EnvSource); dir != "" {
		return dir
	}
	exe, err := os.Executable()
	if err == nil {
		exe, err = filepath.EvalSymlinks(exe)
	}
	if err != nil || filepath.Base(filepath.Dir(exe)) != "bin" {
		return ""
	}
	return checkoutOf(exe)
}

// checkoutOf returns the checkout whose bin directory has the program exe. It returns "" if exe or one of the files
// that it checks is missing, or if such a file belongs to a user other than exe's owner, this process's effective user
// and root.
func checkoutOf(exe string) string {
	var program, st unix.Stat_t
	if unix.Stat(exe, &program) != nil {
		return ""
	}
	dir := filepath.Dir(filepath.Dir(exe))
	for _, name := range append([]string{"tools/with-tools", "tools/debs.sh"}, userlandSources...) {
		if unix.Stat(filepath.Join(dir, name), &st) != nil ||
			!slices.Contains([]uint32{0, uint32(os.Geteuid()), program.Uid}, st.Uid) {
			return ""
		}
	}
	return dir
}
