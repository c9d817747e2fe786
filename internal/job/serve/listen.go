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

// listener is a socket that we listen at.
type listener struct {
	*net.UnixListener
	name string
	file os.FileInfo // what we made at name; nil: the socket came open
	gone func()      // the file is
	once sync.Once

	outside func() error // removes the file; nil: this process does

	rule     access.Rule                      // who may connect
	note     func(format string, args ...any) // nil: nobody is refused, the socket came open
	reported access.Told                      // users who were refused; of each
}

// listen makes a socket at path. A file that a dead process has left there is replaced.
func listen(ctx context.Context, path string) (*listener, error) {
	unlock, err := lockDir(ctx, filepath.Dir(path))
	if err != nil {
		return nil, outfile.Explain("socket "+path, err)
	}
	defer unlock()
	for range 3 { // others than us take no lock
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

// private looks whether the socket at path came to be ours alone. A umask that takes the owner's
// rights is undone.
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

// lockDir keeps others of our kind from making sockets in a directory. Where that cannot be done, it is done without.
func lockDir(ctx context.Context, dir string) (unlock func(), err error) {
	d, err := os.Open(dir)
	if errors.Is(err, fs.ErrPermission) { // a user who may write may not always read
		return func() {}, nil
	}
	if err != nil {
		return nil, err
	}
	retry := time.NewTicker(5 * time.Millisecond)
	defer retry.Stop()
	limit := time.After(limits.Directory.Here()) // it takes a millisecond; whoever holds it longer is not of our kind
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

// Close ends accepting, and removes the file if it is still ours.
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

// remove removes the file if it is still ours.
func (l *listener) remove() error {
	if l.outside != nil {
		return l.outside()
	}
	if st, err := os.Lstat(l.name); err != nil || !os.SameFile(st, l.file) || !sameTime(st, l.file) {
		return nil
	}
	return os.Remove(l.name)
}

// sameTime tells two files apart that had the same inode one after the other.
func sameTime(a, b os.FileInfo) bool {
	x, ok := a.Sys().(*syscall.Stat_t)
	y, ok2 := b.Sys().(*syscall.Stat_t)
	return ok && ok2 && x.Mtim == y.Mtim
}
