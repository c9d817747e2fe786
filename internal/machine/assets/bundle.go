package assets

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"
)

// The names of bundles: the directories of the cache that have their trees.
const (
	BundleTests      = "selftests-root"  // what the kernel's driver selftests run on
	BundleTools      = "selftests-tools" // what they are built with, and their source
	BundleGuestTools = "guest-tools"     // what --tools puts into guests
	BundleHeaders    = "kernel-headers"  // what vnicgpu.ko is built with (gpumodule)
	BundleCompiler   = "compiler"        // and by, where this machine has none
)

// GPUModules is the directory of the cache that has the vnicgpu.ko that were built.
const GPUModules = "gpu-modules"

// Bundle is packages, with all that they need, which are fetched as QEMU and the kernel are, into a tree of their own.
type Bundle struct {
	Name     string
	Title    string   // for people; "": Name
	Series   string   // trees of the same name, of which each has its use: of the kernel's series, say
	Packages []string // that are named; the first one's version counts
	Leave    []string // that are not taken where others need them
	Only     []string // nothing else is taken than Packages and these, whatever they need; nil: all of it
	Suites   []string // where to look, best first; nil: those of versions.lock
	Want     string   // the version of it that is looked for: the nearest is taken; "": the first suite's
	// Build makes something of the tree before it is kept; nil: nothing.
	Build func(ctx context.Context, root string) error
	// Downloading hears how many bytes will be downloaded, before they are; nil: nobody.
	Downloading func(bytes int64)
	Needs       []string // files that the tree has to have
}

// Tree is a bundle's tree of the cache.
type Tree struct {
	Dir      string
	Version  string // of the first package
	Suite    string
	Packages []Package
	held     int
}

// Close lets others remove the tree from the cache.
func (t *Tree) Close() error {
	if t == nil || t.held < 0 {
		return nil
	}
	fd := t.held
	t.held = -1
	return unix.Close(fd)
}

// FetchBundle finds a bundle in the cache, or fetches it, as Fetch does; of the options it goes by those of the cache
// and the mirror. Without an error the caller closes the Tree.
func FetchBundle(ctx context.Context, o Options, b Bundle) (*Tree, []string, error) {
	o.silence()
	dir, err := CacheDir(o)
	if err != nil {
		return nil, nil, err
	}
	c := cache{dir}
	r := b.role()
	have, err := c.load()
	if err != nil {
		return nil, nil, err
	}
	var notes []string
	if t := have[r.key]; t != nil && r.check(ctx, filepath.Join(dir, t.Dir)) != nil { // made by a vnic of before
		o.Refresh, have[r.key] = true, nil
	}
	if have[r.key] == nil || o.Refresh && !o.Offline {
		if o.Offline {
			return nil, nil, &Missing{What: cmp.Or(b.Title, b.Name) + " in " + dir, Err: ErrOffline,
				Fix: "fetch once with the network"}
		}
		if have, notes, err = fetchInto(ctx, c, &o, []role{r}); err != nil {
			return nil, nil, CacheError(dir, err)
		}
	}
	t := have[r.key]
	tree := &Tree{Dir: filepath.Join(dir, t.Dir), Version: t.Version, Suite: t.Suite, Packages: t.Packages}
	if tree.held, err = hold(tree.Dir); err != nil {
		return nil, nil, fmt.Errorf("cache: %w: it was removed in this moment: try again", err)
	}
	if err := c.checkTree(t.Dir); err != nil {
		return nil, nil, errors.Join(err, tree.Close())
	}
	if err := r.check(ctx, tree.Dir); err != nil {
		return nil, nil, errors.Join(fmt.Errorf("cache: %w: remove %s and fetch again", err, tree.Dir), tree.Close())
	}
	return tree, notes, nil
}

// HasBundle says whether the cache has a bundle's tree, so that FetchBundle downloads nothing.
func HasBundle(o Options, b Bundle) bool {
	dir, err := CacheDir(o)
	if err != nil {
		return false
	}
	have, err := cache{dir}.load()
	return err == nil && have[b.role().key] != nil
}

func (b *Bundle) role() role {
	return role{name: b.Name, key: b.Name + " " + b.Series, install: b.Packages, want: b.Want, suites: b.Suites,
		build: b.Build, title: cmp.Or(b.Title, b.Name), downloading: b.Downloading,
		pick: func(c []Package) []Package {
			return slices.DeleteFunc(c, func(p Package) bool {
				left := slices.Contains(b.Leave, p.Name) || b.Only != nil && !slices.Contains(b.Only, p.Name)
				return left && !slices.Contains(b.Packages, p.Name)
			})
		},
		own: func(p Package) bool { return p.Name == b.Packages[0] },
		check: func(_ context.Context, root string) error {
			for _, f := range b.Needs {
				if _, err := os.Stat(filepath.Join(root, f)); err != nil {
					return fmt.Errorf("the packages of %s lack %s: %w", b.Name, f, err)
				}
			}
			return nil
		}}
}

// Loader is where glibc's loader lies in a tree of packages, and Libraries its libraries: by these two the tree's
// programs run on a machine with any other libc.
const (
	Loader    = loader
	Libraries = "usr/lib/x86_64-linux-gnu"
)
