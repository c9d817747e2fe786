package selftests

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"vnic.dev/vnic/internal/machine/assets"
	"vnic.dev/vnic/internal/proc"
)

// format is in the hash of images' names: change it when the way of making images changes.
const format = "vnic selftests 4"

// Options are the inputs of the images.
type Options struct {
	assets.Options
	Kernel  assets.Kernel
	Source  string // a user's tree; "": the source package of the kernel's series
	Tests   string // directory of scripts that replace the tests' scripts; "": none
	Patched bool   // also make the patched tests
}

// Images are paths of the images in the cache, and facts about them.
type Images struct {
	Root    string
	Tests   string
	Patched string   // "": not requested
	Left    []string // names of patches missing in Patched: they, or patches that they need, do not apply
	Changed string   // "": without Options.Tests
	Modules string
	List    string   // the tests' list: lines COLLECTION:FILE
	Source  string   // as "linux-source-7.2 7.2.12-1", or the user's tree; with Options.Tests also its scripts' number
	Notes   []string // messages for the user

	trees []*assets.Tree
}

// Close allows the removal of the images' inputs from the cache.
func (im *Images) Close() error {
	var errs []error
	for _, t := range im.trees {
		errs = append(errs, t.Close())
	}
	im.trees = nil
	return errors.Join(errs...)
}

var series = regexp.MustCompile(`^\d+\.\d+`)

// Series returns the series of a kernel's version, "7.2" of "7.2.12+deb14-cloud-amd64"; "" if there is none.
func Series(version string) string { return series.FindString(version) }

// Megabytes estimates the megabytes to download for a kernel's images, of packages missing in the cache.
func Megabytes(o Options) (n int) {
	if !assets.HasBundle(o.Options, rootBundle(o.Kernel.Version)) {
		n += 57
	}
	if !assets.HasBundle(o.Options, toolsBundle(o.Kernel.Version)) {
		n += 340
	}
	return n
}

// Make finds the images in the cache, or makes them. The caller closes the Images.
func Make(ctx context.Context, o Options) (*Images, error) {
	if Series(o.Kernel.Version) == "" {
		return nil, &assets.Missing{What: "kernel " + o.Kernel.Version, Err: errors.New("its version names no series"),
			Fix: "give its modules by --modules: their directory has its version as its name"}
	}
	if o.Source != "" {
		if err := CheckSource(o.Source); err != nil {
			return nil, err
		}
	}
	m := maker{o: &o, im: &Images{}}
	if err := m.make(ctx); err != nil {
		return nil, errors.Join(assets.CacheError(m.cache, err), m.im.Close())
	}
	return m.im, nil
}

type maker struct {
	o           *Options
	im          *Images
	cache       string
	root, tools *assets.Tree
}

func (m *maker) bundle(ctx context.Context, b assets.Bundle) (*assets.Tree, error) {
	t, notes, err := assets.FetchBundle(ctx, m.o.Options, b)
	if err != nil {
		return nil, err
	}
	m.im.trees = append(m.im.trees, t)
	m.im.Notes = append(m.im.Notes, notes...)
	return t, nil
}

func (m *maker) progress(kind string, done int64) {
	if m.o.Progress != nil {
		m.o.Progress(assets.Progress{Step: "build", What: kinds[kind], Done: done})
	}
}

var kinds = map[string]string{"root": "the tests' file system", "modules": "an image of the kernel's modules",
	"tests": "the kernel's tests", "patched": "the kernel's tests, patched"}

func (m *maker) make(ctx context.Context) (err error) {
	if m.cache, err = assets.CacheDir(m.o.Options); err != nil {
		return err
	}
	if m.root, err = m.bundle(ctx, rootBundle(m.o.Kernel.Version)); err != nil {
		return err
	}
	if m.tools, err = m.bundle(ctx, toolsBundle(m.o.Kernel.Version)); err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Join(m.cache, "selftests"), 0o755); err != nil {
		return err
	}
	if m.im.Root, err = m.image(ctx, "root", []string{filepath.Base(m.root.Dir), rootFiles()},
		func(string) ([]string, error) { return assets.Contents(m.root.Dir) }, rootFiles()); err != nil {
		return err
	}
	if m.im.Modules, err = m.modules(ctx); err != nil {
		return err
	}
	return m.tests(ctx)
}

// listName is the file of the tests' list (tools/testing/selftests/Makefile, install).
const listName = "kselftest-list.txt"

func (m *maker) path(kind string, parts []string) string {
	h := sha256.New()
	for _, p := range append([]string{format, kind}, parts...) {
		_, _ = fmt.Fprintf(h, "%d %s\n", len(p), p)
	}
	return filepath.Join(m.cache, "selftests", kind+"-"+hex.EncodeToString(h.Sum(nil)[:16])+".squashfs")
}

// image makes the image of a kind, unless one with the same parts (its inputs) exists, and returns its path. The
// function files returns the paths of the image's top-level files and directories, and may create them below work;
// pseudo defines additional files (rootFiles).
func (m *maker) image(ctx context.Context, kind string, parts []string, files func(work string) ([]string, error),
	pseudo string) (path string, err error) {
	path = m.path(kind, parts)
	if _, err := os.Stat(path); err == nil {
		return path, nil
	}
	m.progress(kind, 0)
	work, err := os.MkdirTemp(filepath.Join(m.cache, "selftests"), ".new-")
	if err != nil {
		return "", err
	}
	defer proc.Sweep(work)()
	list, err := files(work)
	if err != nil {
		return "", err
	}
	var options []string
	if len(list) == 1 { // without the option, mksquashfs packs the contents of a single directory
		options = []string{"-keep-as-directory"}
	}
	if pseudo != "" {
		defs := filepath.Join(work, "pseudo")
		if err := os.WriteFile(defs, []byte(pseudo), 0o644); err != nil {
			return "", err
		}
		options = append(options, "-pf", defs)
	}
	made, program := filepath.Join(work, "image"), []string{filepath.Join(m.tools.Dir, "usr/bin/mksquashfs")}
	if err := assets.Squash(ctx, program, list, made, 1, options...); err != nil {
		return "", fmt.Errorf("image %s: %w", kind, err)
	}
	return path, os.Rename(made, path)
}

// modules finds or makes the image of the kernel's modules. If they have no modules.dep, it calls depmod first.
func (m *maker) modules(ctx context.Context) (string, error) {
	k := &m.o.Kernel
	if k.Modules == "" {
		return "", &assets.Missing{What: "kernel " + k.Version, Err: errors.New("its modules are not known"),
			Fix: "give their directory by --modules"}
	}
	list, err := assets.Contents(k.Modules)
	if err != nil {
		return "", err
	}
	list = slices.DeleteFunc(list, func(p string) bool { return slices.Contains(notModules, filepath.Base(p)) })
	// If the modules are in the cache, their path below it identifies them.
	id, ours := strings.CutPrefix(k.Modules, m.cache+string(filepath.Separator))
	if !ours {
		if id, err = filesID(list); err != nil {
			return "", err
		}
	}
	return m.image(ctx, "modules", []string{k.Version, id}, func(work string) ([]string, error) {
		if _, err := os.Stat(filepath.Join(k.Modules, "modules.dep")); err == nil {
			return list, nil
		}
		dir := filepath.Join(work, "base/lib/modules", k.Version)
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return nil, err
		}
		for _, p := range list {
			if err := os.Symlink(p, filepath.Join(dir, filepath.Base(p))); err != nil {
				return nil, err
			}
		}
		if _, err := (proc.Command{}).Run(ctx, filepath.Join(m.tools.Dir, "usr/sbin/depmod"), "-b",
			filepath.Join(work, "base"), k.Version); err != nil {
			return nil, fmt.Errorf("kernel %s: %w", k.Version, err)
		}
		made, err := filepath.Glob(filepath.Join(dir, "modules.*"))
		for _, p := range made {
			if st, err := os.Lstat(p); err == nil && st.Mode().IsRegular() {
				list = append(list, p)
			}
		}
		return list, err
	}, "")
}

// notModules are entries of a modules directory that the image omits.
var notModules = []string{"build", "source", "vmlinuz", "System.map", "config"}

// filesID returns a hash of the paths, sizes and modification times of files, and of all files below directories
// among them.
func filesID(files []string) (string, error) {
	h := sha256.New()
	for _, f := range files {
		if err := filepath.WalkDir(f, func(path string, e fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			st, err := e.Info()
			if err != nil {
				return err
			}
			_, err = fmt.Fprintf(h, "%s %d %d\n", path, st.Size(), st.ModTime().UnixNano())
			return err
		}); err != nil {
			return "", err
		}
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

func (m *maker) tests(ctx context.Context) error {
	id := filepath.Base(m.tools.Dir)
	m.im.Source = "linux-source-" + Series(m.o.Kernel.Version) + " " + m.tools.Version
	if m.o.Source != "" {
		tree, err := filesID(partsOf(m.o.Source))
		if err != nil {
			return err
		}
		id, m.im.Source = id+" "+tree, m.o.Source
	}
	one := func(kind string, p patchSeries) (string, error) {
		parts := []string{id, p.id(), preload, sitecustomize, string(liburing)}
		return m.image(ctx, kind, parts, func(work string) ([]string, error) {
			src, ks := filepath.Join(work, "src"), filepath.Join(work, "ks")
			for _, d := range []string{src, ks} {
				if err := os.Mkdir(d, 0o755); err != nil {
					return nil, err
				}
			}
			if err := source(ctx, m.tools.Dir, m.o.Source, src); err != nil {
				return nil, err
			}
			left, err := p.apply(ctx, m.tools.Dir, src)
			if err != nil {
				return nil, err
			}
			var log bytes.Buffer
			if err := build(ctx, m.tools.Dir, src, ks, &log, func(done int64) { m.progress(kind, done) }); err != nil {
				return nil, errors.Join(err, m.keep(kind, log.Bytes()))
			}
			if err := m.buildPreload(ctx, ks); err != nil {
				return nil, err
			}
			list, err := os.ReadFile(filepath.Join(ks, listName))
			if err == nil {
				// The list is written before the image: an image that exists is not made again.
				err = os.WriteFile(m.path(kind, parts)+".list", list, 0o644)
			}
			if err == nil && left != nil {
				err = os.WriteFile(m.path(kind, parts)+leftName, []byte(strings.Join(left, "\n")), 0o644)
			}
			if err != nil {
				return nil, err
			}
			return assets.Contents(ks)
		}, "")
	}
	var err error
	if m.im.Tests, err = one("tests", nil); err != nil {
		return err
	}
	list, err := os.ReadFile(m.im.Tests + ".list")
	if err != nil {
		return fmt.Errorf("%w: remove %s, and it is made again", err, m.im.Tests)
	}
	m.im.List = string(list)
	if m.o.Tests != "" {
		if m.im.Changed, err = m.changed(ctx); err != nil {
			return err
		}
	}
	if m.o.Patched {
		if m.im.Patched, err = one("patched", patches); err != nil {
			return err
		}
		left, err := os.ReadFile(m.im.Patched + leftName)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		m.im.Left = strings.Fields(string(left))
	}
	return nil
}

// leftName is the suffix of the file that lists the patches missing in an image, if there are any.
const leftName = ".left"

// keep saves the log of a failed build. It returns an error with the log's path, or the error of writing it.
func (m *maker) keep(kind string, log []byte) error {
	path := filepath.Join(m.cache, "selftests", kind+".log")
	if err := os.WriteFile(path, log, 0o644); err != nil {
		return err
	}
	return fmt.Errorf("see the log: %s", path)
}
