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

// The cache is a directory of programs that run as the user who starts vnic: QEMU, compilers, and
// files loaded into guests. apt verifies packages before vnic unpacks them, and nothing verifies them again: so only
// this user and root may be able to write there. Each process checks once the cache, its
// directories of kinds with their entries, and the whole of each tree that it uses: about 5 us per
// file, and QEMU and a kernel have 2,600 files. tools/debs.sh has the same rule for the trees that it puts
// into the cache.
//
// Directories above the cache and access control lists are not checked: the directories' owners
// decide about them.
//
// The check follows a link if its owner is this user or root. If a directory of this user is writable by
// a group, vnic removes that permission and uses the directory: older scripts made such directories
// under a umask of 002. Files that another user has put there belong to that user, and the check refuses them.

// trustedPaths are the paths that this process has checked; a tree's path ends with a slash.
var trustedPaths sync.Map

// check checks the cache, its directories of kinds with their entries, and resolved.json. A missing directory is no
// error.
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

// checkFiles checks files and directories by their paths below the cache, and each directory above
// them.
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

// checkEntries checks the entries of a kind's directory. Entries of this user may be writable by a
// group, because compilers make guest programs so under a umask of 002.
func checkEntries(dir string) error {
	entries, _ := os.ReadDir(dir) // an unreadable directory cannot be used
	for _, e := range entries {
		var st unix.Stat_t
		if unix.Lstat(filepath.Join(dir, e.Name()), &st) != nil {
			continue // another process has removed it
		}
		if err := (trusted.Rule{Forbidden: 0o002, Roots: true}).Check(filepath.Join(dir, e.Name()), &st); err != nil {
			return err
		}
	}
	return nil
}

// checkTree checks a tree by its path below the cache, with everything in it. For a link it checks
// the owner, but not the target, which is in the tree or belongs to the system.
func (c cache) checkTree(dir string) error {
	if err := c.checkFiles(dir); err != nil {
		return err
	}
	root, err := filepath.EvalSymlinks(filepath.Join(c.dir, dir))
	if err != nil {
		return nil // the tree does not exist
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
			return checkPath(path) // before reading its entries
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

// CheckCached returns a *Missing if another user could have put files or directories into the
// cache, or changed them there. Names are relative to the cache's directory. A missing name is no
// error.
func CheckCached(dir string, names ...string) error { return cache{dir}.checkFiles(names...) }

// checkPath checks a file, a directory, or a link with its target. A missing file is no error. If a directory of this
// user is writable by its group but not by others, checkPath first removes that permission.
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
		return nil // a run cannot use the file either
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

// refuse adds advice to an error of the check.
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
