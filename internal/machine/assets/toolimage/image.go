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

// Files of a tree in the cache.
const (
	imageFile    = "tools-1.squashfs" // change the number when build changes
	programsFile = "programs"
)

// squash is the package of mksquashfs, which runs with the tree's libraries.
const squash = "squashfs-tools"

// squashPrograms are omitted in the list of programs unless the user names squash.
var squashPrograms = []string{"mksquashfs", "unsquashfs", "sqfstar", "sqfscat"}

// forScripts are packages that others need only for maintainer scripts. They are left out unless the user names them.
var forScripts = []string{"adduser", "base-passwd", "cdebconf", "debconf", "init-system-helpers", "libpam-modules",
	"libpam-modules-bin", "libsemanage-common", "libsemanage2", "libsepol2", "login.defs", "passwd", "systemd"}

// newest is above all versions.
const newest = "99999.99999.99999"

var generation = regexp.MustCompile(`^\d+\.\d+`)

// Program is a program of an image.
type Program = guesttools.Program

// Image is an image in the cache, held until Close.
type Image struct {
	Path     string
	Programs []Program // sorted; each name once
	Packages []assets.Package
	Notes    []string // for the user

	tree *assets.Tree
}

// Has reports whether an image, which may be nil, has a program of this name.
func (im *Image) Has(name string) bool {
	return im != nil && slices.ContainsFunc(im.Programs, func(p Program) bool { return p.Name == name })
}

// Close allows the image's removal.
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

// Fetch finds the image of a non-empty set in the cache, or makes it. kernel is the version to which ethtool's
// should be near, if ethtool is the first package; "": the newest. Before a download it calls downloading, which
// may be nil. The caller closes the image. The error is assets.ErrNoPackage if the archive lacks a package.
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

// build replaces a tree of packages by its image and the list of its programs.
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

// programDirs are the directories of programs; of programs with the same name the first directory's counts.
var programDirs = []string{"usr/local/sbin", "usr/local/bin", "usr/sbin", "usr/bin", "usr/games"}

// programs lists a tree's programs, without links out of it.
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

// alternatives are links as of update-alternatives(1), with their targets, best first.
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

// finish makes links, and compiles Python's modules if the tree has python3, as maintainer scripts do.
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
