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
// anything there. What is looked at: the cache, its directories of kinds (once a process, 14 calls of fstat), and on
// the way to what is used each directory, and the files that are started. No tree is walked.
//
// Directories above the cache are not looked at, nor access control lists: these are their owners' decisions.
//
// A link is followed where its owner is this user or root. A directory of this user's that a group may write is closed
// to it, and used: scripts of before made such under a umask of 002, and below it anything that is another user's is
// refused all the same.

// trustedPaths are what this process has checked.
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

// inTrees are what programs are started from in trees, by their paths there.
var inTrees = []string{loader, "usr/bin/qemu-system-x86_64", Libraries + "/qemu", "usr/share/qemu", "usr/share/seabios",
	"usr/lib/modules", "lib/modules", "boot", vmlinuxName, "usr/sbin"}

// checkTree checks a tree by its path below the cache.
func (c cache) checkTree(dir string) error {
	names := make([]string, len(inTrees))
	for i, n := range inTrees {
		names[i] = filepath.Join(dir, n)
	}
	return c.checkFiles(names...)
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
			_ = os.Chmod(fmt.Sprintf("/proc/self/fd/%d", d.Fd()), fs.FileMode(st.Mode&0o755))
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
		"anything there, chmod it, else remove it, or set " + EnvCache + " to a directory of yours"}
}
