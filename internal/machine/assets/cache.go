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

// The cache (kinds in cachelist.go lists the other directories):
//
//	lock           locked (flock) by a process that fetches or imports trees, or removes entries (RemoveCached)
//	resolved.json  the current tree of QEMU, the kernel and each bundle
//	qemu/KEY/      a QEMU with its libraries; KEY: version and a hash of the packages, and of an import's file names
//	kernel/KEY/    a kernel, the same kernel unpacked (vmlinux; empty if it cannot be booted), and its modules
//	images/        initramfs images of guests (package guestimages)
//	gpu-modules/   vnicgpu.ko for guest kernels (package gpumodule)
//	kvm.json       results of probes of KVM in this boot of the host (package qemu)
//	tmp/           trees that are being made or removed; lockToAdd empties it
//
// A tree appears by one rename, and its files' contents do not change afterwards, but for vmlinux, so a process that
// uses a tree does not need the cache's lock. It holds the tree (hold), so that RemoveCached does not remove it.
type cache struct{ dir string }

// CacheDir returns the cache's path, without creating the cache. The error is a *Missing if there is no path, or if
// users other than this one and root own something there or may write there (trust.go, also for exceptions).
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

// lock creates the cache, if it does not exist, and locks it until unlock is called. While the cache is locked
// otherwise, lock calls waiting at once and every 100 ms; it gives up if waiting returns an error or ctx ends.
func (c cache) lock(ctx context.Context, waiting func() error) (unlock func(), err error) {
	if err := os.MkdirAll(filepath.Join(c.dir, "tmp"), 0o755); err != nil {
		return nil, c.noCache(err)
	}
	if err := c.check(); err != nil { // another process may just have made it
		return nil, err
	}
	f, err := os.OpenFile(filepath.Join(c.dir, "lock"), os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return nil, c.noCache(err)
	}
	tick := time.NewTicker(100 * time.Millisecond) // a flock that waits cannot be cancelled
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

// lockToAdd locks the cache for adding trees, and calls clean. waited is true if the lock was not free at once; then
// progress was called, too.
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

func (c cache) noCache(err error) error {
	var known *Missing
	if err = CacheError(c.dir, err); errors.As(err, &known) {
		return err
	}
	return cacheError(c.dir, ErrNoCache, err, fixWrite)
}

// resolved is resolved.json: the current tree by resolvedKey of a role or bundle.
type resolved map[string]*tree

type tree struct {
	Dir      string    `json:"dir"`     // relative to the cache
	Version  string    `json:"version"` // of the main package (Bundle.isMain)
	Suite    string    `json:"suite"`
	Fetched  time.Time `json:"fetched"`
	Disk     int64     `json:"disk"` // bytes of its files
	Packages []Package `json:"packages"`
	For      []string  `json:"for,omitempty"` // if imported: the commands whose files it has
}

// load reads resolved.json, without trees that no longer exist; if the file is missing, unreadable for this user or
// malformed, the result is empty. A tree that users other than this one and root own or may write (trust.go) is an
// error. Of bundles' trees, which have many files, load checks only the directory.
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
		return resolved{}, nil // of another version of vnic, perhaps
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

// SaveJSON writes v as JSON to the file of this name in dir, a cache, and replaces an old file by one rename.
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

// clean removes the entries of tmp and temporary files of SaveJSON. The caller holds the lock, so killed processes have
// left them; but kvm.json is written without the lock.
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

// Prune removes the entries of dir whose modification time is longer ago than unused, but for the entry named except
// and for trees that are held (hold).
func Prune(dir string, unused time.Duration, except string) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return
	}
	defer func() { _ = root.Close() }()
	entries, _ := os.ReadDir(dir)
	for _, e := range entries {
		st, err := e.Info()
		if err != nil || e.Name() == except || time.Since(st.ModTime()) <= unused {
			continue
		}
		if tree, free := holdAlone(root, e.Name()); free {
			_ = root.RemoveAll(e.Name())
			_ = tree.Close() // nil: an error
		}
	}
}

// free returns the bytes that users without privilege can still write to the cache's file system. If the cache does not
// exist, it asks at the nearest directory above that exists.
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
