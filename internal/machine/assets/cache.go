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
//	lock           locked (flock) by a process that fetches, imports or removes trees
//	resolved.json  the last resolved and unpacked trees
//	qemu/KEY/      a QEMU with its libraries; KEY: version and a hash of the packages, and of an import's files
//	kernel/KEY/    a kernel, the same kernel unpacked (vmlinux), and its modules
//	images/        see guest-images
//	gpu-modules/   see gpumodule
//	kvm.json       whether KVM works here, since this boot
//	tmp/           incomplete trees; lockToAdd removes old ones
//
// A tree appears by one rename, and its files' contents do not change afterwards, but for vmlinux, so readers need
// no lock.
type cache struct{ dir string }

// CacheDir returns the cache's path, without creating it. The error is a *Missing if there is no path, or if
// other users may write there, or own it (trust.go).
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

// lock creates the cache and locks it. While another process holds the lock, it calls waiting every 100 ms
// until that returns an error or ctx ends.
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

// lockToAdd locks the cache for adding trees, and removes what killed processes have left. waited: another
// vnic held the lock.
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

// resolved is resolved.json: the current tree by role or bundle.
type resolved map[string]*tree

type tree struct {
	Dir      string    `json:"dir"`     // relative to the cache
	Version  string    `json:"version"` // of the main package (Bundle.isMain)
	Suite    string    `json:"suite"`
	Fetched  time.Time `json:"fetched"`
	Disk     int64     `json:"disk"` // bytes
	Packages []Package `json:"packages"`
	For      []string  `json:"for,omitempty"` // imported, with only the files that these commands need
}

// load reads resolved.json, without trees that no longer exist; a missing, forbidden or malformed one counts
// as empty. A tree that others own or may write (trust.go) is an error. Of bundles' trees, which have many files, it
// checks only the directory.
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
		return resolved{}, nil // of another version, perhaps
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

// SaveJSON replaces a file of the cache in dir by one rename.
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

// clean removes what killed processes have left. The caller holds the lock.
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

// Prune removes the entries of dir that were last modified more than unused ago, but for except and trees in use
// (hold).
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

// free returns the free space at the nearest existing directory.
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
