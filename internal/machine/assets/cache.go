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

	"vnic.dev/vnic/internal/outfile"
)

// The cache:
//
//	lock           locked (flock) by a process that changes the cache
//	resolved.json  the last resolved and unpacked trees
//	qemu/KEY/      a QEMU with all its libraries; KEY consists of version and a hash of the packages
//	kernel/KEY/    a kernel, the same kernel unpacked (vmlinux), and its modules
//	images/        see guest-images
//	gpu-modules/   see gpumodule
//	kvm.json       whether KVM works here, since this boot
//	tmp/           incomplete trees; the holder of the lock removes old ones
//
// kinds (cachelist.go) lists the other directories.
//
// A tree appears by one rename and does not change afterwards, so readers need no lock. Only
// vmlinux may be added later, also by a rename.
type cache struct{ dir string }

// CacheDir returns the path of the cache, without creating it. The error is a *Missing if neither an option nor the
// environment yields a path, or if other users may write the cache or own it.
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

// lock creates the cache directory and locks it. While another vnic holds the lock, it calls waiting every 100 ms, and
// gives up when waiting returns an error.
func (c cache) lock(ctx context.Context, waiting func() error) (unlock func(), err error) {
	if err := os.MkdirAll(filepath.Join(c.dir, "tmp"), 0o755); err != nil {
		return nil, c.noCache(err)
	}
	if err := c.check(); err != nil { // another process may just have made the directory
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

// lockToAdd locks the cache for a process that adds trees, and removes what killed processes have
// left there. waited reports whether another vnic held the lock.
func (c cache) lockToAdd(ctx context.Context, progress func(Progress)) (unlock func(), waited bool, err error) {
	unlock, err = c.lock(ctx, func() error {
		if !waited {
			progress(Progress{Step: "wait", What: "another vnic that is fetching"})
			waited = true
		}
		return nil
	})
	if err == nil {
		c.clean()
	}
	return unlock, waited, err
}

// noCache returns the error of a cache that cannot be created.
func (c cache) noCache(err error) error {
	var known *Missing
	if err = CacheError(c.dir, err); errors.As(err, &known) {
		return err
	}
	return cacheError(c.dir, ErrNoCache, err, fixWrite)
}

// resolved is resolved.json: the current tree of each role and bundle, by its key.
type resolved map[string]*tree

// tree is one unpacked set of packages.
type tree struct {
	Dir      string    `json:"dir"`     // relative to the cache
	Version  string    `json:"version"` // of the main package (Bundle.isMain)
	Suite    string    `json:"suite"`
	Fetched  time.Time `json:"fetched"`
	Disk     int64     `json:"disk"` // bytes
	Packages []Package `json:"packages"`
	For      []string  `json:"for,omitempty"` // set: imported; only the files that these commands need are present
}

// load reads resolved.json, without trees that no longer exist. A missing, unreadable or malformed resolved.json
// counts as empty. It returns an error for a tree that other users may write. Of a bundle's tree, which has ten times
// as many files as QEMU and a kernel, load checks only the directory; FetchBundle checks all files.
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
		return resolved{}, nil // not ours, or of another version: fetch again
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

// SaveJSON writes a file of the cache in dir atomically: a reader finds either the old or the new
// content.
func SaveJSON(dir, name string, v any) error {
	b, err := json.MarshalIndent(v, "", "\t")
	if err != nil {
		return err
	}
	return outfile.Replace(filepath.Join(dir, name), func(f *os.File) error {
		_, err := f.Write(append(b, '\n'))
		return err
	})
}

// clean removes what earlier runs left behind when they were killed. The caller holds the lock.
func (c cache) clean() {
	entries, _ := os.ReadDir(filepath.Join(c.dir, "tmp"))
	for _, e := range entries {
		_ = os.RemoveAll(filepath.Join(c.dir, "tmp", e.Name()))
	}
	left, _ := filepath.Glob(filepath.Join(c.dir, ".*.json?*"))
	for _, l := range left {
		_ = os.Remove(l)
	}
}

// Prune removes the entries of a directory of the cache whose modification time is older than unused, except the
// entry with the name except. Processes set that time when they begin to use an entry.
func Prune(dir string, unused time.Duration, except string) {
	entries, _ := os.ReadDir(dir)
	for _, e := range entries {
		if st, err := e.Info(); err == nil && e.Name() != except && time.Since(st.ModTime()) > unused {
			_ = os.RemoveAll(filepath.Join(dir, e.Name()))
		}
	}
}

// free returns the free space at the cache's nearest existing directory.
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

// checkSpace returns an error if need bytes do not fit.
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
