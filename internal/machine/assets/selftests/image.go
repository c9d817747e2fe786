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

// format is part of every image's name: change it with how one is made.
const format = "vnic selftests 4"

// Options says what is to be made.
type Options struct {
	assets.Options
	Kernel  assets.Kernel // the guest's
	Source  string        // a user's tree, whose tests are built; "": the package of the kernel's series
	Tests   string        // files that take the place of the tests', below a directory; "": none
	Patched bool          // the tests are wanted with the patches applied, too
}

// Images are files of the cache.
type Images struct {
	Root    string
	Tests   string
	Patched string   // the tests with the patches applied, if they were asked for
	Left    []string // the names of patches that do not apply to this kernel's tests, and are not in Patched
	Changed string   // files that take the place of the tests', if there are any
	Modules string
	List    string   // the tests' own list of programs: lines COLLECTION:FILE
	Source  string   // what the tests are of, in words: "linux-source-7.2 7.2.12-1"
	Notes   []string // what a user may want to know

	trees []*assets.Tree
}

// Close lets others remove from the cache what the images were made of.
func (im *Images) Close() error {
	var errs []error
	for _, t := range im.trees {
		errs = append(errs, t.Close())
	}
	im.trees = nil
	return errors.Join(errs...)
}

// series is the major and minor of a kernel's version.
var series = regexp.MustCompile(`^\d+\.\d+`)

// Series is that of a kernel's version, "7.2" of "7.2.12+deb14-cloud-amd64"; "" if it has none.
func Series(version string) string { return series.FindString(version) }

// Megabytes says how many are downloaded, about, before there are images for a kernel; 0: nothing is.
func Megabytes(o Options) (n int) {
	if !assets.HasBundle(o.Options, rootBundle(o.Kernel.Version)) {
		n += 57
	}
	if !assets.HasBundle(o.Options, toolsBundle(o.Kernel.Version)) {
		n += 340
	}
	return n
}

// Make finds the images in the cache, or makes them. Without an error the caller closes them.
func Make(ctx context.Context, o Options) (im *Images, err error) {
	if Series(o.Kernel.Version) == "" {
		return nil, &assets.Missing{What: "kernel " + o.Kernel.Version, Err: errors.New("its version names no series"),
			Fix: "give its modules by --modules: their directory has its version as its name"}
	}
	if o.Source != "" {
		if err := CheckSource(o.Source); err != nil {
			return nil, err
		}
	}
	im = &Images{}
	defer func() {
		if err != nil {
			err = errors.Join(err, im.Close())
			im = nil
		}
	}()
	m := maker{o: &o, im: im}
	if m.cache, err = assets.CacheDir(o.Options); err != nil {
		return im, err
	}
	if m.root, err = m.bundle(ctx, rootBundle(o.Kernel.Version)); err != nil {
		return im, err
	}
	if m.tools, err = m.bundle(ctx, toolsBundle(o.Kernel.Version)); err != nil {
		return im, err
	}
	if err := os.MkdirAll(filepath.Join(m.cache, "selftests"), 0o755); err != nil {
		return im, assets.CacheError(m.cache, err)
	}
	if err := m.make(ctx); err != nil {
		return im, assets.CacheError(m.cache, err)
	}
	return im, nil
}

// maker is one call of Make.
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

// progress says what is built, and how many steps of it are done.
func (m *maker) progress(kind string, done int64) {
	if m.o.Progress != nil {
		m.o.Progress(assets.Progress{Step: "build", What: kinds[kind], Done: done})
	}
}

// kinds are the images, in a user's words.
var kinds = map[string]string{"root": "the tests' file system", "modules": "an image of the kernel's modules",
	"tests": "the kernel's tests", "patched": "the kernel's tests, patched"}

func (m *maker) make(ctx context.Context) (err error) {
	if m.im.Root, err = m.image(ctx, "root", []string{filepath.Base(m.root.Dir), rootFiles()},
		func(string) ([]string, error) { return contents(m.root.Dir) }, rootFiles()); err != nil {
		return err
	}
	if m.im.Modules, err = m.modules(ctx); err != nil {
		return err
	}
	return m.tests(ctx)
}

// contents are the files of a directory, each a source of mksquashfs's.
func contents(dir string) (list []string, err error) {
	entries, err := os.ReadDir(dir)
	for _, e := range entries {
		list = append(list, filepath.Join(dir, e.Name()))
	}
	return list, err
}

// listName is where the tests have their list (tools/testing/selftests/Makefile, install).
const listName = "kselftest-list.txt"

// path is where the image of a kind is that is made of what parts say.
func (m *maker) path(kind string, parts []string) string {
	h := sha256.New()
	for _, p := range append([]string{format, kind}, parts...) {
		_, _ = fmt.Fprintf(h, "%d %s\n", len(p), p)
	}
	return filepath.Join(m.cache, "selftests", kind+"-"+hex.EncodeToString(h.Sum(nil)[:16])+".squashfs")
}

// image makes the image of a kind from what parts say, unless it is there. files makes what goes into it, in a
// directory of its own; pseudo are more files.
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
	made := filepath.Join(work, "image")
	args := append(slices.Clone(list), made, "-all-root", "-comp", "zstd", "-Xcompression-level", "1", "-noappend",
		"-no-progress", "-quiet", "-no-xattrs", "-all-time", "0", "-mkfs-time", "0")
	if len(list) == 1 { // else what is in a directory takes its place
		args = append(args, "-keep-as-directory")
	}
	if pseudo != "" {
		defs := filepath.Join(work, "pseudo")
		if err := os.WriteFile(defs, []byte(pseudo), 0o644); err != nil {
			return "", err
		}
		args = append(args, "-pf", defs)
	}
	mksquashfs := filepath.Join(m.tools.Dir, "usr/bin/mksquashfs")
	// It refuses to be told by both what time it is, and make has this one.
	squash := proc.Command{Dir: work, Unset: []string{"SOURCE_DATE_EPOCH"}}
	if _, err := squash.Run(ctx, mksquashfs, args...); err != nil {
		return "", fmt.Errorf("image %s: %w", kind, err)
	}
	return path, os.Rename(made, path)
}

// modules makes the image of the kernel's modules. What depends on what, depmod says where the kernel's own directory
// does not, as Debian's packages do not before they are installed.
func (m *maker) modules(ctx context.Context) (string, error) {
	k := &m.o.Kernel
	if k.Modules == "" {
		return "", &assets.Missing{What: "kernel " + k.Version, Err: errors.New("its modules are not known"),
			Fix: "give their directory by --modules"}
	}
	// A tree of the cache is what its name says, and stays so where the cache is copied to.
	id, ours := strings.CutPrefix(k.Modules, m.cache+string(filepath.Separator))
	if !ours {
		var err error
		if id, err = treeID(k.Modules); err != nil {
			return "", err
		}
	}
	return m.image(ctx, "modules", []string{k.Version, id}, func(work string) ([]string, error) {
		list, err := contents(k.Modules)
		if err != nil {
			return nil, err
		}
		list = slices.DeleteFunc(list, func(p string) bool { return slices.Contains(notModules, filepath.Base(p)) })
		if _, err := os.Stat(filepath.Join(k.Modules, "modules.dep")); err == nil {
			return list, nil
		}
		base := filepath.Join(work, "base/lib/modules")
		if err := os.MkdirAll(base, 0o755); err != nil {
			return nil, err
		}
		at := filepath.Join(base, k.Version)
		if err := os.Mkdir(at, 0o755); err != nil {
			return nil, err
		}
		for _, p := range list {
			if err := os.Symlink(p, filepath.Join(at, filepath.Base(p))); err != nil {
				return nil, err
			}
		}
		if _, err := (proc.Command{}).Run(ctx, filepath.Join(m.tools.Dir, "usr/sbin/depmod"), "-b",
			filepath.Join(work, "base"), k.Version); err != nil {
			return nil, fmt.Errorf("kernel %s: %w", k.Version, err)
		}
		made, err := filepath.Glob(filepath.Join(at, "modules.*"))
		for _, p := range made {
			if st, err := os.Lstat(p); err == nil && st.Mode().IsRegular() {
				list = append(list, p)
			}
		}
		return list, err
	}, "")
}

// notModules are what a modules directory may have besides: links to a tree of source, and the kernel itself.
var notModules = []string{"build", "source", "vmlinuz", "System.map", "config"}

// treeID tells a directory from others, and from itself after a change: by names, sizes and times.
func treeID(dir string) (string, error) {
	h := sha256.New()
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if e.IsDir() && path != dir && slices.Contains([]string{".git", "build", "source"}, e.Name()) {
			return filepath.SkipDir
		}
		st, err := e.Info()
		if err != nil {
			return err
		}
		_, err = fmt.Fprintf(h, "%s %d %d\n", path, st.Size(), st.ModTime().UnixNano())
		return err
	})
	return hex.EncodeToString(h.Sum(nil)), err
}

// tests makes the images of the tests.
func (m *maker) tests(ctx context.Context) error {
	id := filepath.Base(m.tools.Dir)
	m.im.Source = "linux-source-" + Series(m.o.Kernel.Version) + " " + m.tools.Version
	if m.o.Source != "" {
		own, err := treeID(filepath.Join(m.o.Source, selftestsDir))
		if err != nil {
			return err
		}
		id, m.im.Source = id+" "+own, m.o.Source
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
				// Before the image, which is what is looked for.
				err = os.WriteFile(m.path(kind, parts)+".list", list, 0o644)
			}
			if err == nil && left != nil {
				err = os.WriteFile(m.path(kind, parts)+leftName, []byte(strings.Join(left, "\n")), 0o644)
			}
			if err != nil {
				return nil, err
			}
			return contents(ks)
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

// leftName is the end of the name of a file beside an image, with the names of patches that are not in it; without one
// all are.
const leftName = ".left"

// keep leaves the log of a build that failed in the cache, and says where.
func (m *maker) keep(kind string, log []byte) error {
	path := filepath.Join(m.cache, "selftests", kind+".log")
	if err := os.WriteFile(path, log, 0o644); err != nil {
		return err
	}
	return fmt.Errorf("what was said: %s", path)
}
