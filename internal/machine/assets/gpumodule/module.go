package gpumodule

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"vnic.dev/vnic/internal/machine/assets"
	"vnic.dev/vnic/internal/proc"
)

// Errors of Make about a build, wrapped in an *assets.Missing.
var (
	ErrNoHeaders  = errors.New("no headers of this kernel")
	ErrNoCompiler = errors.New("no C compiler and make")
	ErrBuild      = errors.New("it does not compile")
	ErrWarnings   = errors.New("it compiles with warnings")
	ErrCachePath  = errors.New("the kernel's Makefiles take no directory with a space or one of :#$%")
)

// format is part of the hashes in modules' names: change it when the way to build changes.
const format = "vnicgpu 1"

// keep is the time without use after which Make, when it builds a module, removes others from the cache.
const keep = 60 * 24 * time.Hour

// Options are the inputs of a build.
type Options struct {
	assets.Options
	Kernel assets.Kernel                    // the guests' kernel
	Source fs.FS                            // the module's source
	Note   func(format string, args ...any) // called before headers or a compiler are downloaded; may be nil
}

func (o *Options) missing(err error, fix string) error {
	if fix != "" {
		fix += "; or "
	}
	return &assets.Missing{What: "vnicgpu.ko for kernel " + o.Kernel.Version, Err: oneLine{err},
		Fix: fix + "name a module of your own by $VNIC_GPU_MODULE, or leave out --gpu-driver vnicgpu"}
}

// oneLine is an error whose text has "; " for the ends of lines.
type oneLine struct{ error }

func (e oneLine) Error() string {
	return strings.ReplaceAll(strings.TrimSpace(e.error.Error()), "\n", "; ")
}
func (e oneLine) Unwrap() error { return e.error }

// Make returns the path of the module in the cache, and builds the module if the cache lacks it.
func Make(ctx context.Context, o Options) (path string, err error) {
	h, err := o.ownHeaders()
	if err != nil {
		return "", err
	}
	if path, err = o.path(h); err != nil {
		return "", err
	}
	dir := filepath.Dir(path)
	if err := assets.CheckCached(filepath.Dir(dir), filepath.Join(assets.GPUModules, filepath.Base(path))); err != nil {
		return "", err
	}
	if _, err := os.Stat(path); err == nil {
		now := time.Now()
		_ = os.Chtimes(path, now, now) // for Prune, the time of the last use
		return path, nil
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", assets.CacheError(filepath.Dir(dir), err)
	}
	assets.Prune(dir, keep, "")
	return path, assets.CacheError(filepath.Dir(dir), o.make(ctx, h, path))
}

func (o *Options) make(ctx context.Context, h *headers, path string) (err error) {
	dir := filepath.Dir(path)
	if strings.ContainsAny(dir, " \t:#$%") {
		return o.missing(fmt.Errorf("%w: %s", ErrCachePath, dir),
			"set "+assets.EnvCache+" to another directory")
	}
	work, err := os.MkdirTemp(dir, ".new-")
	if err != nil {
		return err
	}
	defer proc.Sweep(work)()
	c := findCompiler(ctx, work)
	if h == nil {
		if h, err = o.debianHeaders(); err != nil {
			return err
		}
	}
	if mb := o.megabytes(h, c); mb > 0 && !o.Offline && o.Note != nil {
		o.Note("vnicgpu.ko is built for kernel %s, this once: about %d MB to download", o.Kernel.Version, mb)
	}
	if h.dir == "" { // Debian's headers
		h.tree, _, err = assets.FetchBundle(ctx, o.Options, h.bundle)
		if err = o.fetched(err, ErrNoHeaders, "name its headers by --headers DIR"); err != nil {
			return err
		}
	}
	defer func() { err = errors.Join(err, h.tree.Close()) }()
	if c == nil {
		if c, err = o.debianCompiler(ctx, work); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, c.tree.Close()) }()
	}
	if o.Progress != nil {
		o.Progress(assets.Progress{Step: "build", What: "vnicgpu.ko"})
	}
	return o.build(ctx, h, c, work, path)
}

// megabytes estimates how many MB a build downloads.
func (o *Options) megabytes(h *headers, c *compiler) (n int) {
	if h.dir == "" && !assets.HasBundle(o.Options, h.bundle) {
		n += headersMB + listsMB
	}
	if c == nil && !assets.HasBundle(o.Options, compilerBundle()) {
		n += compilerMB + listsMB
	}
	return n
}

// MB of downloads, as measured: Debian's headers of 7.2 and 7.3, its compilers of bookworm and forky, apt's lists of a
// suite.
const (
	headersMB  = 16
	compilerMB = 60
	listsMB    = 11
)

var notInNames = regexp.MustCompile(`[^A-Za-z0-9.+_-]`)

// path returns the module's path in the cache; the file need not exist.
func (o *Options) path(h *headers) (string, error) {
	cache, err := assets.CacheDir(o.Options)
	if err != nil {
		return "", err
	}
	key, err := o.key(h)
	name := "vnicgpu-" + notInNames.ReplaceAllString(o.Kernel.Version, "_") + "-" + key + ".ko"
	return filepath.Join(cache, assets.GPUModules, name), err
}

// key returns the hash in the module's name (doc.go). h are the user's headers; nil: Debian's are used.
func (o *Options) key(h *headers) (string, error) {
	sum := sha256.New()
	part := func(name string, content []byte) {
		_, _ = fmt.Fprintf(sum, "%s %d %x\n", name, len(content), sha256.Sum256(content))
	}
	part(format, nil)
	// If the banner cannot be read, the version identifies the kernel.
	banner, _ := assets.KernelBanner(o.Kernel.Image)
	part("kernel", []byte(cmp.Or(banner, o.Kernel.Version)))
	sources, err := o.sources()
	for _, s := range sources {
		part("source "+s.name, s.content)
	}
	if err == nil && h != nil {
		err = h.each(part)
	}
	return hex.EncodeToString(sum.Sum(nil)[:8]), err
}

// sourceName matches the names of the module's Kbuild, source and header files.
var sourceName = regexp.MustCompile(`^(Kbuild|[a-z]+\.[ch])$`)

type source struct {
	name    string
	content []byte
}

// sources returns the files in Source that sourceName matches, sorted by name.
func (o *Options) sources() (list []source, err error) {
	entries, err := fs.ReadDir(o.Source, ".")
	for _, e := range entries {
		if !sourceName.MatchString(e.Name()) { // as vnicgpu.mod.c, which a build in that directory leaves
			continue
		}
		b, err := fs.ReadFile(o.Source, e.Name())
		if err != nil {
			return nil, err
		}
		list = append(list, source{e.Name(), b})
	}
	return list, err
}
