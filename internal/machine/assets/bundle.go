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

// Names of bundles, which are also the directories of their trees in the cache.
const (
	BundleTests      = "selftests-root"  // the system on which the kernel's driver selftests run
	BundleTools      = "selftests-tools" // the tools that build the selftests, and their source
	BundleGuestTools = "guest-tools"     // the packages that --tools puts into guests
	BundleHeaders    = "kernel-headers"  // the kernel headers for building vnicgpu.ko (gpumodule)
	BundleCompiler   = "compiler"        // a compiler for vnicgpu.ko, if this machine has none
)

// GPUModules is the cache directory of built vnicgpu.ko files.
const GPUModules = "gpu-modules"

// Bundle is a set of packages with all their dependencies, which vnic fetches in the same way as
// QEMU and the kernel, into a separate tree.
type Bundle struct {
	Name     string
	Title    string   // for messages; "": Name
	Series   string   // distinguishes trees of the same Name that are all in use, such as one per kernel series
	Packages []string // the packages to install; the first one's version is the tree's
	Leave    []string // packages that are not installed although others depend on them
	Only     []string // if not nil, only Packages and these are installed, without other dependencies
	Suites   []string // suites to search, best first; nil: the suites of versions.lock
	Want     string   // the preferred version: FetchBundle uses the nearest one; "": the first suite's
	// Build processes the unpacked tree before it enters the cache; may be nil.
	Build func(ctx context.Context, root string) error
	// Downloading receives the number of bytes before a download; may be nil.
	Downloading func(bytes int64)
	Needs       []string // files that the tree must have
	// Mark is a file that the tree gets after Build, and must have: it shows that this version of
	// Build has made the tree; "": none.
	Mark string

	key   string                                       // in resolved.json; "": Name and Series
	main  func(Package) bool                           // the package whose version is the tree's; nil: the first
	pick  func(closure []Package) []Package            // selects packages; nil: by Leave and Only
	check func(ctx context.Context, root string) error // checks a tree, in addition to Needs; may be nil
}

// Tree is a bundle's tree in the cache.
type Tree struct {
	Dir      string
	Version  string // of the bundle's first package
	Suite    string
	Packages []Package
	held     int // descriptor of hold; -1: closed
}

// Close allows other processes to remove the tree from the cache.
func (t *Tree) Close() error {
	if t == nil || t.held < 0 {
		return nil
	}
	fd := t.held
	t.held = -1
	return unix.Close(fd)
}

// FetchBundle finds a bundle in the cache, or fetches it, as Fetch does, and returns its tree and notes for the user.
// It ignores the options that name or select a QEMU or a kernel. Without an error the caller closes the Tree.
func FetchBundle(ctx context.Context, o Options, b Bundle) (*Tree, []string, error) {
	o.silence()
	dir, err := CacheDir(o)
	if err != nil {
		return nil, nil, err
	}
	c := cache{dir}
	key := b.resolvedKey()
	have, err := c.load()
	if err != nil {
		return nil, nil, err
	}
	var notes []string
	if t := have[key]; t != nil && b.works(ctx, filepath.Join(dir, t.Dir)) != nil { // incomplete: an older vnic made it
		o.Refresh, have[key] = true, nil
	}
	if have[key] == nil || o.Refresh && !o.Offline {
		if o.Offline {
			return nil, nil, &Missing{What: cmp.Or(b.Title, b.Name) + " in " + dir, Err: ErrOffline,
				Fix: "fetch once with the network"}
		}
		if have, notes, err = fetchInto(ctx, c, &o, []Bundle{b}); err != nil {
			return nil, nil, CacheError(dir, err)
		}
	}
	t := have[key]
	tree := &Tree{Dir: filepath.Join(dir, t.Dir), Version: t.Version, Suite: t.Suite, Packages: t.Packages}
	if tree.held, err = hold(tree.Dir); err != nil {
		return nil, nil, fmt.Errorf("cache: %w: it was removed in this moment: try again", err)
	}
	if err := c.checkTree(t.Dir); err != nil {
		return nil, nil, errors.Join(err, tree.Close())
	}
	if err := b.works(ctx, tree.Dir); err != nil {
		return nil, nil, errors.Join(fmt.Errorf("cache: %w: remove %s and fetch again", err, tree.Dir), tree.Close())
	}
	return tree, notes, nil
}

// HasBundle reports whether the cache has a bundle's tree. FetchBundle then downloads nothing, unless the tree does
// not work or Refresh is set.
func HasBundle(o Options, b Bundle) bool {
	dir, err := CacheDir(o)
	if err != nil {
		return false
	}
	have, err := cache{dir}.load()
	return err == nil && have[b.resolvedKey()] != nil
}

// resolvedKey returns the bundle's key in resolved.json.
func (b *Bundle) resolvedKey() string { return cmp.Or(b.key, b.Name+" "+b.Series) }

// isMain reports whether a package's version is the tree's.
func (b *Bundle) isMain(p Package) bool {
	if b.main != nil {
		return b.main(p)
	}
	return p.Name == b.Packages[0]
}

// installed returns the packages of a closure that are installed.
func (b *Bundle) installed(closure []Package) []Package {
	if b.pick != nil {
		return b.pick(closure)
	}
	return slices.DeleteFunc(closure, func(p Package) bool {
		left := slices.Contains(b.Leave, p.Name) || b.Only != nil && !slices.Contains(b.Only, p.Name)
		return left && !slices.Contains(b.Packages, p.Name)
	})
}

// works returns an error if a tree lacks a file or does not work.
func (b *Bundle) works(ctx context.Context, root string) error {
	for _, f := range append(slices.Clone(b.Needs), b.Mark) {
		if _, err := os.Stat(filepath.Join(root, f)); err != nil {
			return fmt.Errorf("the packages of %s lack %s: %w", b.Name, f, err)
		}
	}
	if b.check == nil {
		return nil
	}
	return b.check(ctx, root)
}

// finish runs Build on the unpacked packages in root, and then writes Mark there.
func (b *Bundle) finish(ctx context.Context, root string) error {
	if b.Build != nil {
		if err := b.Build(ctx, root); err != nil {
			return err
		}
	}
	if b.Mark == "" {
		return nil
	}
	return os.WriteFile(filepath.Join(root, b.Mark), nil, 0o644)
}
