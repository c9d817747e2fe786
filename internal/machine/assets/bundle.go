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

// Names of bundles, which are also the names of their directories in the cache.
const (
	BundleTests      = "selftests-root"  // the root file system in which the kernel's driver selftests run
	BundleTools      = "selftests-tools" // tools that build the selftests, and the kernel's source
	BundleGuestTools = "guest-tools"     // packages of --tools
	BundleHeaders    = "kernel-headers"  // headers for vnicgpu.ko (gpumodule)
	BundleCompiler   = "compiler"        // a compiler for vnicgpu.ko
)

// GPUModules is the name of the cache's directory of built vnicgpu.ko files.
const GPUModules = "gpu-modules"

// Bundle is a set of packages that are unpacked, with their dependencies, into a tree of their own in the cache.
type Bundle struct {
	Name     string
	Title    string   // for messages; "": Name
	Series   string   // distinguishes bundles of the same Name, as one per kernel series
	Packages []string // the first one's version is the tree's, unless main is set
	Leave    []string // dependencies that are not installed
	Only     []string // if not nil, of the dependencies only these are installed
	Suites   []string // suites to search, best first; nil: the suites of versions.lock
	Want     string   // preferred version; "": that of versions.lock, else that of the first usable suite
	// Build processes the unpacked tree in root; may be nil.
	Build func(ctx context.Context, root string) error
	// Downloading is called before a download, with the number of its bytes; may be nil.
	Downloading func(bytes int64)
	Needs       []string // paths of files in the tree that it must have
	// Mark is an empty file that finish makes in the tree after Build, and that the tree must have; "": none.
	Mark string

	key   string                                       // of the tree in resolved.json; "": Name and Series
	main  func(Package) bool                           // selects the package whose version is the tree's; nil: Packages[0]
	pick  func(closure []Package) []Package            // returns the packages to install; nil: by Leave and Only
	check func(ctx context.Context, root string) error // checks the tree after Needs and Mark; may be nil
}

// Tree is a bundle's tree in the cache.
type Tree struct {
	Dir      string
	Version  string // of the Bundle's main package (isMain)
	Suite    string
	Packages []Package
	held     int // descriptor from hold; -1: closed
}

// Close ends the hold on the tree, which kept RemoveCached from removing it. Close of a nil Tree does nothing.
func (t *Tree) Close() error {
	if t == nil || t.held < 0 {
		return nil
	}
	fd := t.held
	t.held = -1
	return unix.Close(fd)
}

// FetchBundle returns a bundle's tree and notes for the user. It fetches the bundle if the cache has no tree that
// works, or if o.Refresh is set; with o.Offline it fetches nothing. The caller closes the Tree.
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
	if t := have[key]; t != nil && b.works(ctx, filepath.Join(dir, t.Dir)) != nil { // incomplete, or of an older vnic
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

// HasBundle reports whether resolved.json names a tree of a bundle and the tree's directory exists.
func HasBundle(o Options, b Bundle) bool {
	dir, err := CacheDir(o)
	if err != nil {
		return false
	}
	have, err := cache{dir}.load()
	return err == nil && have[b.resolvedKey()] != nil
}

func (b *Bundle) resolvedKey() string { return cmp.Or(b.key, b.Name+" "+b.Series) }

func (b *Bundle) isMain(p Package) bool {
	if b.main != nil {
		return b.main(p)
	}
	return p.Name == b.Packages[0]
}

// installed returns the packages of a closure that are to be installed. It may change closure.
func (b *Bundle) installed(closure []Package) []Package {
	if b.pick != nil {
		return b.pick(closure)
	}
	return slices.DeleteFunc(closure, func(p Package) bool {
		left := slices.Contains(b.Leave, p.Name) || b.Only != nil && !slices.Contains(b.Only, p.Name)
		return left && !slices.Contains(b.Packages, p.Name)
	})
}

// works returns an error if the tree in root lacks a file of Needs or Mark, or if check returns an error.
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

// finish runs Build in root, and then makes the file Mark, if they are set.
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
