package assets

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// The cache:
//
//	lock           held (flock) by the process that changes something
//	resolved.json  what was resolved and unpacked last
//	qemu/KEY/      a QEMU with all its libraries; KEY names version and content
//	kernel/KEY/    a kernel, the same unpacked (vmlinux), and its modules
//	images/        see guest-images
//	gpu-modules/   see gpumodule
//	kvm.json       does KVM work here, since this boot
//	tmp/           trees in the making: the holder of the lock removes what is left there
//
// A tree appears by one rename and is never changed after that, so readers need no lock. Only vmlinux may
// come later, by one rename as well.
type cache struct{ dir string }

// CacheDir says where the cache is, without making it. A cache that others may write, or that is another user's, is a
// *Missing.
func CacheDir(o Options) (string, error) {
	dir := cmp.Or(o.CacheDir, os.Getenv(EnvCache))
	if dir == "" {
		base, err := os.UserCacheDir()
		if err != nil {
			return "", &Missing{What: "cache", Err: fmt.Errorf("%w: %w", ErrNoCache, err),
				Fix: "set " + EnvCache + " to a directory that may hold 300 MB"}
		}
		dir = filepath.Join(base, "vnic")
	}
	dir, err := filepath.Abs(dir)
	if err != nil {
		return "", err
	}
	return dir, cache{dir}.check()
}

// lock makes the cache directory and takes its lock, waiting for another vnic when there is one, unless
// waiting gives an error.
func (c cache) lock(ctx context.Context, waiting func() error) (unlock func(), err error) {
	if err := os.MkdirAll(filepath.Join(c.dir, "tmp"), 0o755); err != nil {
		return nil, c.noCache(err)
	}
	if err := c.check(); err != nil { // another may have made it in this moment
		return nil, err
	}
	f, err := os.OpenFile(filepath.Join(c.dir, "lock"), os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return nil, c.noCache(err)
	}
	tick := time.NewTicker(100 * time.Millisecond) // flock cannot be cancelled
	defer tick.Stop()
	for {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return func() { _ = f.Close() }, nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) {
			return nil, errors.Join(fmt.Errorf("cache %s: lock: %w", c.dir, err), f.Close())
		}
		if err = waiting(); err == nil {
			select {
			case <-tick.C:
				continue
			case <-ctx.Done():
				err = ctx.Err()
			}
		}
		return nil, errors.Join(err, f.Close())
	}
}

// noCache is the error of a cache that cannot be made.
func (c cache) noCache(err error) error {
	var known *Missing
	if err = CacheError(c.dir, err); errors.As(err, &known) {
		return err
	}
	return cacheError(c.dir, ErrNoCache, err, fixWrite)
}

// resolved is resolved.json: the tree of each role.
type resolved map[string]*tree

// tree is one unpacked set of packages.
type tree struct {
	Dir      string    `json:"dir"`     // below the cache
	Version  string    `json:"version"` // of the role's own package
	Suite    string    `json:"suite"`
	Fetched  time.Time `json:"fetched"`
	Disk     int64     `json:"disk"` // bytes
	Packages []Package `json:"packages"`
	For      []string  `json:"for,omitempty"` // only what these commands need is there: it was imported
}

// load reads resolved.json; trees that are not there any more are left out. A tree that others may write is an error.
// Of a bundle's tree, which has ten times as many files as QEMU and a kernel, FetchBundle checks all, and load its
// directory.
func (c cache) load() (resolved, error) {
	r := resolved{}
	b, err := os.ReadFile(filepath.Join(c.dir, "resolved.json"))
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, os.ErrPermission) {
		return r, nil
	}
	if err != nil {
		return r, cacheError(c.dir, ErrNoCache, err, fixWrite)
	}
	if json.Unmarshal(b, &r) != nil || r == nil {
		return resolved{}, nil // not ours, or from another version: fetch again
	}
	maps.DeleteFunc(r, func(_ string, t *tree) bool {
		if t == nil || !filepath.IsLocal(t.Dir) {
			return true
		}
		st, err := os.Stat(filepath.Join(c.dir, t.Dir))
		return err != nil || !st.IsDir()
	})
	for key, t := range r {
		check := c.checkTree
		if key != roleQEMU && key != roleKernel {
			check = func(dir string) error { return c.checkFiles(dir) }
		}
		if err := check(t.Dir); err != nil {
			return resolved{}, err
		}
	}
	return r, nil
}

func (c cache) save(r resolved) error { return SaveJSON(c.dir, "resolved.json", r) }

// SaveJSON writes a file of the cache in dir, so that a reader finds the old one or the new one
// whole.
func SaveJSON(dir, name string, v any) error {
	b, err := json.MarshalIndent(v, "", "\t")
	if err != nil {
		return err
	}
	return saveFile(dir, name, append(b, '\n'))
}

// saveFile writes a file whole, or not at all.
func saveFile(dir, name string, b []byte) error {
	return saveWritten(dir, name, func(f *os.File) error {
		_, err := f.Write(b)
		return err
	})
}

// saveWritten has write write a file: it gets its name when it is whole, and is removed after an error.
func saveWritten(dir, name string, write func(*os.File) error) error {
	f, err := os.CreateTemp(dir, "."+name+"-*")
	if err != nil {
		return err
	}
	err = errors.Join(write(f), f.Chmod(0o644), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), filepath.Join(dir, name))
	}
	if err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	return nil
}

// clean removes what earlier runs left behind when they were killed. The caller holds the lock.
func (c cache) clean() {
	entries, _ := os.ReadDir(filepath.Join(c.dir, "tmp"))
	for _, e := range entries {
		_ = os.RemoveAll(filepath.Join(c.dir, "tmp", e.Name()))
	}
	left, _ := filepath.Glob(filepath.Join(c.dir, ".*.json-*"))
	for _, l := range left {
		_ = os.Remove(l)
	}
}

// free is the space below the cache, found at its nearest directory that exists.
func (c cache) free() (int64, error) {
	for dir := c.dir; ; dir = filepath.Dir(dir) {
		var st unix.Statfs_t
		err := unix.Statfs(dir, &st)
		if err == nil {
			return int64(st.Bavail) * st.Bsize, nil
		}
		if !errors.Is(err, unix.ENOENT) || dir == "/" || !strings.HasPrefix(dir, "/") {
			return 0, fmt.Errorf("cache %s: %w", dir, err)
		}
	}
}

// checkSpace says whether need bytes fit.
func (c cache) checkSpace(need int64) error {
	have, err := c.free()
	if err != nil || have >= need {
		return err
	}
	return &Missing{
		What: "cache " + c.dir, Err: fmt.Errorf("%w: %d MB needed, %d MB free", ErrNoSpace, need>>20+1, have>>20),
		Fix: fixSpace,
	}
}
