package toolimage

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"vnic.dev/vnic/internal/machine/assets"
	"vnic.dev/vnic/internal/proc"
)

// Files of a tree of the cache: all that is left of the packages.
const (
	imageFile    = "tools-1.squashfs" // change its number with how one is made
	programsFile = "programs"
)

// squash makes the image. It comes with the packages, as its libraries do.
const squash = "squashfs-tools"

// squashPrograms are its programs, which a guest has no use for.
var squashPrograms = []string{"mksquashfs", "unsquashfs", "sqfstar", "sqfscat"}

// forScripts are packages that others need for their maintainer scripts, which nobody runs here.
var forScripts = []string{"adduser", "base-passwd", "cdebconf", "debconf", "init-system-helpers", "libpam-modules",
	"libpam-modules-bin", "libsemanage-common", "libsemanage2", "libsepol2", "login.defs", "passwd", "systemd"}

// newest is a version that no package has: the nearest to it is the newest that there is.
const newest = "99999.99999.99999"

// generation is the major and minor of a kernel's version.
var generation = regexp.MustCompile(`^\d+\.\d+`)

// Program is one that an image has.
type Program struct {
	Name string
	Path string // in the image's root
}

// Image is of the cache until it is closed.
type Image struct {
	Path     string
	Programs []Program // by name, each name once
	Packages []assets.Package
	Notes    []string // what a user may want to know

	tree *assets.Tree
}

// Has says whether an image has a program of this name; a nil image has none.
func (im *Image) Has(name string) bool {
	return im != nil && slices.ContainsFunc(im.Programs, func(p Program) bool { return p.Name == name })
}

// Close lets others remove it.
func (im *Image) Close() error {
	if im == nil {
		return nil
	}
	return im.tree.Close()
}

func (s Set) bundle(kernel string) assets.Bundle {
	packages := slices.Clone(s.Packages)
	series, want := strings.Join(packages, " "), newest
	if packages[0] == groups[Net][0] && kernel != "" {
		want = kernel
		series = generation.FindString(kernel) + " " + series
	}
	return assets.Bundle{Name: assets.BundleGuestTools, Title: "--tools " + s.String(),
		Series: series, Packages: append(slices.Clone(packages), squash), Want: want, Leave: forScripts,
		Build: func(ctx context.Context, root string) error { return build(ctx, root, packages) },
		Needs: []string{imageFile, programsFile}}
}

// Fetch finds the image of a set, which has packages, in the cache, or fetches the packages and makes it. kernel is the
// version of the guests', to which ethtool is to be near, or "". downloading hears how many bytes will come, before
// they do; it may be nil. Without an error the caller closes the image. Of what the archive does not have it says so
// (assets.ErrNoPackage).
func Fetch(ctx context.Context, o assets.Options, s Set, kernel string, downloading func(bytes int64)) (*Image, error) {
	b := s.bundle(kernel)
	b.Downloading = downloading
	tree, notes, err := assets.FetchBundle(ctx, o, b)
	if err != nil {
		return nil, err
	}
	im := &Image{Path: filepath.Join(tree.Dir, imageFile), Packages: tree.Packages, Notes: notes, tree: tree}
	if im.Programs, err = readPrograms(filepath.Join(tree.Dir, programsFile)); err != nil {
		return nil, errors.Join(fmt.Errorf("cache: %w: remove %s and fetch again", err, tree.Dir), tree.Close())
	}
	return im, nil
}

// build makes of the tree of packages its image, which takes the tree's place.
func build(ctx context.Context, root string, packages []string) error {
	if err := finish(ctx, root); err != nil {
		return err
	}
	list, err := programs(root)
	if err != nil {
		return err
	}
	if !slices.Contains(packages, squash) {
		list = slices.DeleteFunc(list, func(p Program) bool { return slices.Contains(squashPrograms, p.Name) })
	}
	sources, err := contents(root)
	if err != nil {
		return err
	}
	made := filepath.Join(root, imageFile)
	args := append([]string{"--library-path", filepath.Join(root, assets.Libraries),
		filepath.Join(root, "usr/bin/mksquashfs")}, sources...)
	args = append(args, made, "-all-root", "-comp", "zstd", "-Xcompression-level", "3", "-noappend", "-no-progress",
		"-quiet", "-no-xattrs", "-all-time", "0", "-mkfs-time", "0")
	c := proc.Command{Dir: root, Unset: []string{"SOURCE_DATE_EPOCH"}} // it refuses to be told by both what time it is
	if _, err := c.Run(ctx, filepath.Join(root, assets.Loader), args...); err != nil {
		return fmt.Errorf("image of tools: %w", err)
	}
	for _, dir := range sources {
		if err := os.RemoveAll(dir); err != nil {
			return err
		}
	}
	var text strings.Builder
	for _, p := range list {
		fmt.Fprintf(&text, "%s %s\n", p.Name, p.Path)
	}
	return os.WriteFile(filepath.Join(root, programsFile), []byte(text.String()), 0o644)
}

func contents(dir string) (list []string, err error) {
	entries, err := os.ReadDir(dir)
	for _, e := range entries {
		list = append(list, filepath.Join(dir, e.Name()))
	}
	return list, err
}

// programDirs are those of PATH, in its order.
var programDirs = []string{"usr/local/sbin", "usr/local/bin", "usr/sbin", "usr/bin", "usr/games"}

// programs lists the programs of a tree. Links that lead out of it, as to /etc/alternatives, are none.
func programs(root string) (list []Program, err error) {
	in, err := os.OpenRoot(root)
	if err != nil {
		return nil, err
	}
	defer func() { _ = in.Close() }()
	for _, dir := range programDirs {
		entries, err := os.ReadDir(filepath.Join(root, dir))
		if err != nil {
			continue
		}
		for _, e := range entries {
			name := e.Name()
			st, err := in.Stat(path.Join(dir, name))
			if err != nil || !st.Mode().IsRegular() || st.Mode()&0o111 == 0 || strings.ContainsAny(name, " \n") ||
				slices.ContainsFunc(list, func(p Program) bool { return p.Name == name }) {
				continue
			}
			list = append(list, Program{name, "/" + path.Join(dir, name)})
		}
	}
	slices.SortFunc(list, func(a, b Program) int { return strings.Compare(a.Name, b.Name) })
	return list, nil
}

func readPrograms(file string) (list []Program, err error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		name, at, ok := strings.Cut(lines.Text(), " ")
		if !ok || strings.Contains(name, "/") || !path.IsAbs(at) {
			return nil, fmt.Errorf("%s: %q is no program", file, lines.Text())
		}
		list = append(list, Program{name, at})
	}
	return list, lines.Err()
}
