package toolimage

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"vnic.dev/vnic/internal/guesttools"
	"vnic.dev/vnic/internal/machine/assets"
)

// The files of a tree in the cache; build removes the packages' files.
const (
	imageFile    = "tools-1.squashfs" // change its number when build makes other images
	programsFile = "programs"
)

// squash is the package with the program that makes the image. Fetch fetches it together with the other packages,
// because the program runs with the libraries of their tree.
const squash = "squashfs-tools"

// squashPrograms are the programs of squash, which Image.Programs leaves out, unless the user names the package.
var squashPrograms = []string{"mksquashfs", "unsquashfs", "sqfstar", "sqfscat"}

// forScripts are packages that others need only for their maintainer scripts.
var forScripts = []string{"adduser", "base-passwd", "cdebconf", "debconf", "init-system-helpers", "libpam-modules",
	"libpam-modules-bin", "libsemanage-common", "libsemanage2", "libsepol2", "login.defs", "passwd", "systemd"}

// newest is a version above all real ones, so that the nearest version is the newest.
const newest = "99999.99999.99999"

// generation matches the major and minor number of a kernel's version.
var generation = regexp.MustCompile(`^\d+\.\d+`)

// Program is a program of an image.
type Program = guesttools.Program

// Image is an image in the cache, which holds its tree until Close.
type Image struct {
	Path     string
	Programs []Program // sorted by name, each name once
	Packages []assets.Package
	Notes    []string // messages for the user

	tree *assets.Tree
}

// Has reports whether an image has a program with this name; a nil image has none.
func (im *Image) Has(name string) bool {
	return im != nil && slices.ContainsFunc(im.Programs, func(p Program) bool { return p.Name == name })
}

// Close allows other processes to remove the image.
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

// Fetch finds the image of a non-empty set in the cache, or fetches the packages and makes it.
// kernel is the version of the guests' kernel, to which ethtool's version should be near, or "".
// Before a download Fetch calls downloading, unless that is nil, with the size. Without an error the caller
// closes the image. If the archive lacks a package, the error is assets.ErrNoPackage.
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

// build makes the image of a tree of packages, and replaces the tree by it.
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
	sources, err := assets.Contents(root)
	if err != nil {
		return err
	}
	program := []string{filepath.Join(root, assets.Loader), "--library-path", filepath.Join(root, assets.Libraries),
		filepath.Join(root, "usr/bin/mksquashfs")}
	if err := assets.Squash(ctx, program, sources, filepath.Join(root, imageFile), 3); err != nil {
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

// programDirs are the directories of programs. Of programs with the same name the one in the first directory counts.
var programDirs = []string{"usr/local/sbin", "usr/local/bin", "usr/sbin", "usr/bin", "usr/games"}

// programs lists the programs of a tree, without links that lead out of it, such as to
// /etc/alternatives.
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
			list = append(list, Program{Name: name, Path: "/" + path.Join(dir, name)})
		}
	}
	slices.SortFunc(list, func(a, b Program) int { return strings.Compare(a.Name, b.Name) })
	return list, nil
}

func readPrograms(file string) (list []Program, err error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSuffix(line, "\n")
		name, dest, ok := strings.Cut(line, " ")
		if !ok || strings.Contains(name, "/") || !path.IsAbs(dest) {
			return nil, fmt.Errorf("%s: %q is no program", file, line)
		}
		list = append(list, Program{Name: name, Path: dest})
	}
	return list, nil
}

// alternatives are links that update-alternatives(1) would make, with their possible targets, best
// first.
var alternatives = []struct {
	link    string
	targets []string
}{
	{"usr/bin/awk", []string{"gawk", "mawk", "original-awk"}},
	{"usr/bin/nc", []string{"nc.openbsd", "nc.traditional"}},
	{"usr/bin/vi", []string{"vim.basic", "vim.tiny", "nvi"}},
	{"usr/bin/vim", []string{"vim.basic"}},
	{"usr/bin/editor", []string{"vim.basic", "vim.tiny", "nano"}},
	{"usr/bin/pager", []string{"less"}},
	{"usr/bin/telnet", []string{"telnet.netkit", "inetutils-telnet"}},
}

// finish does what maintainer scripts would have done: it makes links, and compiles Python's
// modules.
func finish(ctx context.Context, root string) error {
	if err := assets.MergeUsr(root); err != nil {
		return err
	}
	for _, a := range alternatives {
		for _, t := range a.targets {
			if _, err := os.Stat(filepath.Join(root, "usr/bin", t)); err != nil {
				continue
			}
			if err := os.Symlink(t, filepath.Join(root, a.link)); err != nil && !errors.Is(err, os.ErrExist) {
				return err
			}
			break
		}
	}
	if _, err := os.Stat(filepath.Join(root, "usr/bin/python3")); err != nil {
		return nil
	}
	return assets.CompilePython(ctx, root)
}
