package serve

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/internal/access"
	"vnic.dev/vnic/internal/atexit"
	"vnic.dev/vnic/internal/limits"
	"vnic.dev/vnic/internal/outfile"
	"vnic.dev/vnic/internal/sockfile"
)

type listener struct {
	*net.UnixListener
	name string
	file os.FileInfo // the file that listen made; nil: the socket was inherited
	gone func()      // undoes atexit.Register
	once sync.Once

	outside func() error // removes the file, by the broker; nil: this process does it

	rule     access.Rule
	note     func(format string, args ...any) // nil: admits admits everybody
	reported access.Told                      // users whose refusal was noted
}

// listen makes a socket at path, and replaces one at which no process listens.
func listen(ctx context.Context, path string) (*listener, error) {
	unlock, err := lockDir(ctx, filepath.Dir(path))
	if err != nil {
		return nil, outfile.Explain("socket "+path, err)
	}
	defer unlock()
	for range 3 { // programs without lockDir's lock may interfere
		l, err := sockfile.Bind(path)
		if err == nil {
			st, err := private(path)
			if err != nil {
				return nil, fmt.Errorf("socket %s: %w", path, errors.Join(err, l.Close()))
			}
			made := &listener{UnixListener: l, name: path, file: st}
			made.gone = atexit.Register(func() { _ = made.remove() })
			return made, nil
		}
		if !errors.Is(err, unix.EADDRINUSE) {
			return nil, outfile.Explain("socket "+path, err)
		}
		if err := sockfile.RemoveStale(path); err != nil {
			return nil, fmt.Errorf("socket %s: %w", path, err)
		}
	}
	return nil, fmt.Errorf("socket %s: somebody else makes and removes it all the time", path)
}

// private checks that the socket's mode gives other users no right, and restores the owner's rights, which a umask may
// have taken away. If the mode gives others a right, private removes the file and returns an error.
func private(path string) (os.FileInfo, error) {
	st, err := os.Lstat(path)
	if err != nil {
		return nil, err
	}
	switch mode := st.Mode().Perm(); {
	case mode == sockfile.Mode:
		return st, nil
	case mode&^sockfile.Mode != 0:
		return nil, errors.Join(fmt.Errorf("others might connect to it, as its mode is %#o and not %#o: "+
			"give a name in a file system that keeps modes", mode, sockfile.Mode), os.Remove(path))
	}
	if err := os.Chmod(path, sockfile.Mode); err != nil {
		return nil, err
	}
	return os.Lstat(path)
}

// lockDir locks a directory, so that other vnics make no sockets there until unlock. It goes on without a
// lock that it cannot get, at the latest after limits.Directory. It returns an error if ctx ends, or if dir cannot be
// opened for another reason than a missing right.
func lockDir(ctx context.Context, dir string) (unlock func(), err error) {
	d, err := os.Open(dir)
	if errors.Is(err, fs.ErrPermission) { // a user may write to a directory that he cannot read
		return func() {}, nil
	}
	if err != nil {
		return nil, err
	}
	retry := time.NewTicker(5 * time.Millisecond)
	defer retry.Stop()
	limit := time.After(limits.Directory.Here()) // another vnic usually holds it for a millisecond
	for {
		if err := unix.Flock(int(d.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != unix.EWOULDBLOCK && err != unix.EINTR {
			return func() { _ = d.Close() }, nil
		}
		select {
		case <-ctx.Done():
			_ = d.Close()
			return nil, context.Cause(ctx)
		case <-limit:
			return func() { _ = d.Close() }, nil
		case <-retry.C:
		}
	}
}

// Close closes the socket, and removes the file that listen made, unless it was replaced. Later calls do nothing.
func (l *listener) Close() (err error) {
	l.once.Do(func() {
		if l.UnixListener != nil {
			err = l.UnixListener.Close()
		}
		if err = errors.Join(err, l.rule.Close()); l.file == nil {
			return
		}
		err = errors.Join(err, l.remove())
		l.gone()
	})
	return err
}

// remove removes the file, unless it was replaced.
func (l *listener) remove() error {
	if l.outside != nil {
		return l.outside()
	}
	if st, err := os.Lstat(l.name); err != nil || !os.SameFile(st, l.file) || !sameTime(st, l.file) {
		return nil
	}
	return os.Remove(l.name)
}

// sameTime reports whether a and b have the same modification time: a later file may have the inode of an earlier one.
func sameTime(a, b os.FileInfo) bool {
	x, ok := a.Sys().(*syscall.Stat_t)
	y, ok2 := b.Sys().(*syscall.Stat_t)
	return ok && ok2 && x.Mtim == y.Mtim
}
