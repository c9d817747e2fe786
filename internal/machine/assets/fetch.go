package assets

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// Environment variables, which take the place of empty Options.
const (
	EnvCache   = "VNIC_CACHE"
	EnvMirror  = "VNIC_MIRROR"
	EnvKeyring = "VNIC_KEYRING"
	EnvQEMU    = "VNIC_QEMU"
	EnvKernel  = "VNIC_KERNEL"
	EnvModules = "VNIC_MODULES"
	EnvHeaders = "VNIC_HEADERS"
)

// Options are the sources of QEMU, the kernel and bundles, and what is needed.
type Options struct {
	CacheDir string // "" = $VNIC_CACHE, else $XDG_CACHE_HOME/vnic, else ~/.cache/vnic
	Mirror   string // "" = $VNIC_MIRROR, else that of the machine's apt sources
	Keyring  string // "" = $VNIC_KEYRING, else the sources' Signed-By, else Debian's
	QEMU     string // "" = $VNIC_QEMU, else of PATH if new enough and not ignored, else the cache's
	Kernel   string // "" = $VNIC_KERNEL, else the cache's
	Modules  string // of a Kernel that the user names; "" = $VNIC_MODULES, else /lib/modules/VERSION if it exists
	Headers  string // of the kernel; "" = $VNIC_HEADERS, else gpumodule finds or fetches them

	KernelOnly       bool // no QEMU is needed
	CachedQEMU       bool // only a QEMU is needed, and it must be the cache's
	VFIOUser         bool // QEMU must have vfio-user-pci
	IgnoreSystemQEMU bool
	Offline          bool // download nothing
	Whole            bool // no imported, partial trees
	Refresh          bool // resolve again what the cache has, unless Offline

	Progress func(Progress) // not called concurrently; may be nil
	Log      *slog.Logger   // may be nil
}

func (o *Options) silence() {
	o.Log = cmp.Or(o.Log, slog.New(slog.DiscardHandler))
	if o.Progress == nil {
		o.Progress = func(Progress) {}
	}
}

func (o *Options) oldest() string {
	if o.VFIOUser {
		return MinVFIOUser
	}
	return MinQEMU
}

// will reports whether the tree t of a role or bundle is not nil, satisfies Whole, and is no QEMU that is too old.
func (o *Options) will(key string, t *tree) bool {
	return t != nil && !(o.Whole && t.For != nil) && !(key == roleQEMU && older(t.Version, o.oldest()))
}

// Binary is a QEMU that can be started.
type Binary struct {
	Args    []string `json:"args"`          // program and its first arguments
	Env     []string `json:"env,omitempty"` // additions to the environment
	Version string   `json:"version"`       // upstream, as "11.1.2"
	Source  string   `json:"source"`        // SourceGiven, SourceSystem, SourceCache
}

// Kernel is a bootable guest kernel.
type Kernel struct {
	Image   string `json:"image"`   // bzImage
	ELF     string `json:"-"`       // path of the unpacked kernel; "" = none
	Version string `json:"version"` // uname -r
	Modules string `json:"modules"` // directory of modules; "" = none
	Source  string `json:"source"`  // SourceGiven, SourceCache
	Suite   string `json:"-"`       // from which it was fetched; "" = unknown

	// Partial are the commands for which the kernel was imported, with commas; "": it was not imported.
	Partial string `json:"-"`
}

// Boots returns the file to boot: the unpacked kernel, or the bzImage if there is none.
func (k *Kernel) Boots() string { return cmp.Or(k.ELF, k.Image) }

// Package is a package of a tree, or one that versions.lock lists.
type Package struct {
	Name    string `json:"name"`
	Version string `json:"version"`
	Size    int64  `json:"size"`
	SHA256  string `json:"sha256"`

	file string // name of the .deb file, as apt prints it; "" for a package of resolved.json or versions.lock
}

// Resolved has the QEMU and the kernel for a run; one of them is zero with KernelOnly or CachedQEMU.
type Resolved struct {
	Cache    string
	QEMU     Binary
	Kernel   Kernel
	Untested []string // lines about untested versions
	Notes    []string // messages for the user

	held []int // descriptors of hold
}

// Close ends the holds on r's trees of the cache, which kept RemoveCached from removing them.
func (r *Resolved) Close() error {
	var errs []error
	for _, fd := range r.held {
		errs = append(errs, unix.Close(fd))
	}
	r.held = nil
	return errors.Join(errs...)
}

// Leave makes the holds on r's trees outlast an exec: programs that this process executes or starts inherit them.
func (r *Resolved) Leave() error {
	for _, fd := range r.held {
		if _, err := unix.FcntlInt(uintptr(fd), unix.F_SETFD, 0); err != nil {
			return os.NewSyscallError("fcntl", err)
		}
	}
	return nil
}

var kernelPackage = regexp.MustCompile(`^linux-(binary|image|modules)-\d`)

var roles = []Bundle{
	{
		Name: roleQEMU, key: roleQEMU, Packages: []string{"qemu-system-x86"},
		check: func(ctx context.Context, root string) error {
			b, err := binaryOf(root)
			if err == nil {
				_, err = b.version(ctx)
			}
			return err
		},
	},
	{
		Name: roleKernel, key: roleKernel, Packages: []string{"linux-image-cloud-amd64"},
		pick:  pickKernel,
		main:  func(p Package) bool { return !strings.HasPrefix(p.Name, "linux-modules-") },
		Build: func(_ context.Context, root string) error { return unpackKernel(root) },
		check: func(_ context.Context, root string) error {
			_, err := kernelOf(root)
			return err
		},
	},
}

// pickKernel selects the packages that contain the kernel and its modules: linux-binary-V and linux-modules-V in newer
// suites, linux-image-V in older ones.
func pickKernel(closure []Package) []Package {
	var list []Package
	binary := slices.ContainsFunc(closure, func(p Package) bool { return strings.HasPrefix(p.Name, "linux-binary-") })
	for _, p := range closure {
		if kernelPackage.MatchString(p.Name) && !(binary && strings.HasPrefix(p.Name, "linux-image-")) {
			list = append(list, p)
		}
	}
	slices.SortFunc(list, func(a, b Package) int { return strings.Compare(a.Name, b.Name) })
	return list
}

// Fetch finds QEMU and a kernel, and fetches into the cache what is missing, unless o.Offline is set. It needs no
// privilege, and several processes may run it at once. The caller closes the result.
func Fetch(ctx context.Context, o Options) (*Resolved, error) {
	o.silence()
	dir, err := CacheDir(o)
	if err != nil {
		return nil, err
	}
	r := &Resolved{Cache: dir}
	if !o.KernelOnly && !o.CachedQEMU {
		var note string
		if r.QEMU, note, err = hostQEMU(ctx, &o); note != "" {
			r.Notes = append(r.Notes, note)
			o.Log.Warn("QEMU passed over", "why", note)
		}
	}
	if err == nil && !o.CachedQEMU {
		r.Kernel, err = givenKernel(&o)
	}
	if err != nil {
		return nil, err
	}
	if err := r.fromCache(ctx, cache{dir}, &o); err != nil {
		return nil, errors.Join(err, r.Close())
	}
	r.compare()
	return r, nil
}

// fromCache completes r from the cache. It fetches if the cache lacks a tree or o.Refresh is set, unless o.Offline is.
func (r *Resolved) fromCache(ctx context.Context, c cache, o *Options) error {
	var want []Bundle
	for _, role := range roles {
		qemu := role.Name == roleQEMU && r.QEMU.Args == nil && !o.KernelOnly
		if qemu || role.Name == roleKernel && r.Kernel.Image == "" && !o.CachedQEMU {
			want = append(want, role)
		}
	}
	if len(want) == 0 {
		return nil
	}
	have, err := c.load()
	if err != nil {
		return err
	}
	lacks := func(role Bundle) bool { return !o.will(role.key, have[role.key]) }
	if slices.ContainsFunc(want, lacks) || (o.Refresh && !o.Offline) {
		switch {
		case o.Offline && o.Whole && have[roleKernel] != nil && have[roleKernel].For != nil:
			return Partial("kernel "+have[roleKernel].Version, strings.Join(have[roleKernel].For, ", "))
		case o.Offline && o.CachedQEMU:
			return &Missing{What: "QEMU in " + c.dir, Err: ErrOffline, Fix: "fetch once with the network"}
		case o.Offline:
			return &Missing{What: "QEMU or a guest kernel in " + c.dir, Err: ErrOffline,
				Fix: "fetch once with the network, or give them yourself (--qemu, --kernel, --modules)"}
		}
		var notes []string
		if have, notes, err = fetchInto(ctx, c, o, want); err != nil {
			return CacheError(c.dir, err)
		}
		r.Notes = append(r.Notes, notes...)
	}
	for _, role := range want {
		t := have[role.Name]
		root := filepath.Join(c.dir, t.Dir)
		fd, err := hold(root)
		if err != nil {
			return fmt.Errorf("cache: %w: it was removed in this moment: try again", err)
		}
		r.held = append(r.held, fd)
		if role.Name == roleQEMU {
			r.QEMU, err = binaryOf(root)
			r.QEMU.Version = upstream(t.Version)
		} else {
			_ = unpackKernel(root) // if that fails, guests boot the bzImage
			r.Kernel, err = kernelOf(root)
			r.Kernel.Suite = t.Suite
			r.Kernel.Partial = strings.Join(t.For, ", ")
		}
		if err != nil {
			return fmt.Errorf("cache: %w: remove %s and fetch again", err, root)
		}
		line, err := lock.untested(role.Name, t.Version, t.Packages)
		if err != nil {
			return fmt.Errorf("cache: %w: remove %s and fetch again", err, root)
		}
		if line != "" {
			r.Untested = append(r.Untested, line)
		}
	}
	return nil
}

// compare adds a line to Untested for a QEMU or a kernel from outside the cache whose version is not the tested one.
func (r *Resolved) compare() {
	for _, p := range []struct{ role, version, source string }{
		{roleQEMU, r.QEMU.Version, r.QEMU.Source}, {roleKernel, r.Kernel.Version, r.Kernel.Source},
	} {
		if want := upstream(lock.version(p.role)); p.version != "" && p.source != SourceCache && upstream(p.version) != want {
			r.Untested = append(r.Untested, fmt.Sprintf("%s %s (%s), tested with %s", p.role, p.version, p.source, want))
		}
	}
}

// Progress is how far a step of a fetch, an import or a build is.
type Progress struct {
	Step        string // "wait", "update", "download", "unpack", "build"
	What        string // as "qemu", or a suite
	Done, Total int64  // bytes; if Total is 0, Done counts steps or is 0
}

// String returns the step and how far it is, as "download qemu, 45 %".
func (p Progress) String() string {
	s := p.Step + " " + p.What
	switch {
	case p.Total > 0:
		return fmt.Sprintf("%s, %d %%", s, 100*p.Done/p.Total)
	case p.Done > 0:
		return fmt.Sprintf("%s, %d steps", s, p.Done)
	}
	return s
}
