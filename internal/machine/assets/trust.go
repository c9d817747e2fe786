package assets

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/internal/trusted"
)

// The cache has programs that run as vnic's user, and nothing verifies them after apt. So users other than this
// one and root must not be able to write there. A process checks once the cache, the entries of its directories,
// and each tree that it uses. tools/debs.sh has about the same rule.
//
// Directories above the cache and access control lists are not checked.
//
// A link is followed if its owner is this user or root. The group's write permission on a directory of this
// user is removed, unless others have it too, and the directory is used: scripts made such directories under a
// umask of 002.

// trustedPaths are the checked paths; a tree's ends with a slash.
var trustedPaths sync.Map

// check checks the cache, its directories with their entries, and resolved.json. What is missing is no error.
func (c cache) check() error {
	if _, ok := trustedPaths.Load(c.dir); ok {
		return nil
	}
	if _, err := os.Stat(c.dir); err != nil {
		return c.refuse(checkPath(c.dir))
	}
	names := make([]string, len(kinds))
	for i, k := range kinds {
		names[i] = k.name
	}
	if err := c.checkFiles(append(names, "resolved.json")...); err != nil {
		return err
	}
	for _, name := range names {
		if err := checkEntries(filepath.Join(c.dir, name)); err != nil {
			return c.refuse(err)
		}
	}
	trustedPaths.Store(c.dir, true)
	return nil
}

// checkFiles checks the cache, files by their paths below it, and the directories between.
func (c cache) checkFiles(names ...string) error {
	err := checkPath(c.dir)
	for _, name := range names {
		dir := c.dir
		for _, part := range strings.Split(filepath.Clean(name), "/") {
			dir = filepath.Join(dir, part)
			if _, ok := trustedPaths.Load(dir); ok || err != nil {
				continue
			}
			if err = checkPath(dir); err == nil {
				if _, there := os.Lstat(dir); there == nil {
					trustedPaths.Store(dir, true)
				}
			}
		}
	}
	return c.refuse(err)
}

// checkEntries checks the entries of a directory. A group may have write permission for them, because a
// compiler makes programs so under a umask of 002.
func checkEntries(dir string) error {
	entries, _ := os.ReadDir(dir) // unreadable: unusable
	for _, e := range entries {
		var st unix.Stat_t
		if unix.Lstat(filepath.Join(dir, e.Name()), &st) != nil {
			continue // just removed
		}
		if err := (trusted.Rule{Forbidden: 0o002, Roots: true}).Check(filepath.Join(dir, e.Name()), &st); err != nil {
			return err
		}
	}
	return nil
}

// checkTree checks a tree by its path below the cache, with all in it. Links' targets are not checked: they
// are in the tree or the system's.
func (c cache) checkTree(dir string) error {
	if err := c.checkFiles(dir); err != nil {
		return err
	}
	root, err := filepath.EvalSymlinks(filepath.Join(c.dir, dir))
	if err != nil {
		return nil // no tree
	}
	if _, ok := trustedPaths.Load(root + "/"); ok {
		return nil
	}
	err = filepath.WalkDir(root, func(path string, e fs.DirEntry, err error) error {
		switch {
		case errors.Is(err, fs.ErrNotExist), errors.Is(err, fs.ErrPermission):
			return nil // just removed, or unusable
		case err != nil:
			return err
		case e.IsDir():
			return checkPath(path) // before its entries
		}
		var st unix.Stat_t
		if unix.Lstat(path, &st) != nil {
			return nil
		}
		return trusted.ReadOnly.Check(path, &st)
	})
	if err == nil {
		trustedPaths.Store(root+"/", true)
	}
	return c.refuse(err)
}

// CheckCached checks the cache dir, the files at the paths names below dir, and the directories between. It returns a
// *Missing if a user other than this one and root owns one of them or may write to it. A missing file is no error.
func CheckCached(dir string, names ...string) error { return cache{dir}.checkFiles(names...) }

// checkPath checks a file, a directory, or a link with its target. A missing file is no error. checkPath
// removes the group's write permission on a directory of this user, if others have none.
func checkPath(path string) error {
	var st unix.Stat_t
	err := unix.Lstat(path, &st)
	if err == nil && st.Mode&unix.S_IFMT == unix.S_IFLNK {
		if err = trusted.ReadOnly.Check(path, &st); err != nil {
			return err
		}
		if path, err = filepath.EvalSymlinks(path); err == nil {
			err = unix.Lstat(path, &st)
		}
	}
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, fs.ErrPermission) {
		return nil // a run cannot use it either
	}
	if err != nil {
		return &fs.PathError{Op: "lstat", Path: path, Err: err}
	}
	if st.Mode&unix.S_IFMT != unix.S_IFDIR {
		return trusted.ReadOnly.Check(path, &st)
	}
	if int(st.Uid) == os.Geteuid() && st.Mode&0o022 == 0o020 {
		if d, err := (trusted.Rule{Forbidden: 0o002}).OpenDir(path); err == nil {
			_ = unix.Chmod(fmt.Sprintf("/proc/self/fd/%d", d.Fd()), st.Mode&0o7777&^0o020)
			_ = d.Close()
		}
	}
	d, err := trusted.ReadOnly.OpenDir(path)
	if err != nil {
		return err
	}
	return d.Close()
}

func (c cache) refuse(err error) error {
	if !errors.Is(err, trusted.Err) {
		return err
	}
	fix := "if nobody else has put anything there, chmod -R go-w it"
	if trusted.OtherOwner(err) {
		fix = "if you trust all of it, own it (chown -R)"
	}
	return &Missing{What: "cache " + c.dir, Err: err, Fix: "its programs would run as you: " + fix +
		", else remove it, or set " + EnvCache + " to a directory of yours"}
}
