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

// The cache is a directory of programs, which run as whoever starts vnic: QEMU, compilers, what is loaded into guests.
// Packages are verified when they are unpacked, and not again: so nobody but this user and root may be able to put
// anything there. Checked are the cache, its directories of kinds with their entries, and all of each tree that is
// used, once a process: about 5 us for each file, of which QEMU and a kernel have 2,600. tools/debs.sh has the same
// rule for what it puts into the cache.
//
// Directories above the cache are not checked, nor access control lists: these are their owners' decisions.
//
// A link is followed where its owner is this user or root. A directory of this user that a group may write is closed to
// the group, and used: older scripts made such directories under a umask of 002. What another user has put there is
// another user's, and refused.

// trustedPaths has what this process has checked; a tree by its path with a slash behind it.
var trustedPaths sync.Map

// check checks the cache and its directories of kinds. One that is not there is fine.
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

// checkFiles checks files and directories by their paths below the cache, and each directory on the way.
func (c cache) checkFiles(names ...string) error {
	err := checkPath(c.dir)
	for _, name := range names {
		at := c.dir
		for _, part := range strings.Split(filepath.Clean(name), "/") {
			at = filepath.Join(at, part)
			if _, ok := trustedPaths.Load(at); ok || err != nil {
				continue
			}
			if err = checkPath(at); err == nil {
				if _, there := os.Lstat(at); there == nil {
					trustedPaths.Store(at, true)
				}
			}
		}
	}
	return c.refuse(err)
}

// checkEntries checks what lies in a directory of a kind. A group may write what is this user's there: a compiler makes
// programs for guests so, under a umask of 002.
func checkEntries(dir string) error {
	entries, _ := os.ReadDir(dir) // what cannot be read cannot be used
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

// checkTree checks a tree by its path below the cache, with all that is in it. Of a link in it the owner is checked,
// and not its target, which is in the tree, or the system's.
func (c cache) checkTree(dir string) error {
	if err := c.checkFiles(dir); err != nil {
		return err
	}
	root, err := filepath.EvalSymlinks(filepath.Join(c.dir, dir))
	if err != nil {
		return nil // it is not there
	}
	if _, ok := trustedPaths.Load(root + "/"); ok {
		return nil
	}
	err = filepath.WalkDir(root, func(path string, e fs.DirEntry, err error) error {
		switch {
		case errors.Is(err, fs.ErrNotExist), errors.Is(err, fs.ErrPermission):
			return nil // removed in this moment, or nothing that can be used
		case err != nil:
			return err
		case e.IsDir():
			return checkPath(path) // before its entries are read
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

// CheckCached refuses what another user could have put into the cache, or changed there: files and directories by
// their paths below its directory. A name that is not there is fine. The error is a *Missing.
func CheckCached(dir string, names ...string) error { return cache{dir}.checkFiles(names...) }

// checkPath checks one file, directory, or link with what it leads to. What is not there is fine.
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
		return nil // nor can it be used
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

// refuse says what can be done about what others could have put there.
func (c cache) refuse(err error) error {
	switch {
	case !errors.Is(err, trusted.Err):
		return err
	case trusted.OtherOwner(err):
		return &Missing{What: "cache " + c.dir, Err: err, Fix: "its programs would run as you: if you trust all of it, " +
			"own it (chown -R), else remove it, or set " + EnvCache + " to a directory of yours"}
	}
	return &Missing{What: "cache " + c.dir, Err: err, Fix: "its programs would run as you: if nobody else has put " +
		"anything there, chmod -R go-w it, else remove it, or set " + EnvCache + " to a directory of yours"}
}
