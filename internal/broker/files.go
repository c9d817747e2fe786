package broker

import (
	"context"
	"errors"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/internal/outfile"
)

// kept is a file that the broker's client has named by opKeep or opDraft, for a later opRemove or opRename.
type kept struct {
	dir   *os.File
	name  string      // the file's name in dir; "": a draft without a name
	st    unix.Stat_t // the file that had the name then; zero: the draft had no name
	to    string      // the name that a draft gets; "": it is no draft
	draft *os.File    // the draft, if it had no name; else nil
	path  string      // path of the directory, if opRemove also removes that; else ""
}

func (s *server) keep(q keptFile) (fileIndex, error) {
	dir, name := filepath.Split(q.Path.String())
	k := kept{name: name}
	if q.AndDirectory {
		k.path = dir
	}
	return s.hold(dir, k)
}

func (s *server) draft(_ context.Context, c *call, q draftFile) (fileIndex, error) {
	k := kept{name: q.Temporary.String(), to: q.Name.String()}
	if (k.name == "") != (c.fds.Len() == 1) {
		return 0, unix.EINVAL
	}
	i, err := s.hold(q.Directory.String(), k)
	if err == nil && k.name == "" {
		s.kept[i].draft = os.NewFile(uintptr(c.fds.Take(0)), k.to)
	}
	return i, err
}

func (s *server) hold(dir string, k kept) (i fileIndex, err error) {
	if len(s.kept) == maxKept {
		return 0, unix.EPERM
	}
	if k.dir, err = os.OpenFile(dir, unix.O_PATH|unix.O_DIRECTORY, 0); err != nil {
		return 0, err
	}
	if k.name != "" {
		if err := unix.Fstatat(int(k.dir.Fd()), k.name, &k.st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
			return 0, errors.Join(err, k.dir.Close())
		}
	}
	s.kept = append(s.kept, k)
	return fileIndex(len(s.kept) - 1), nil
}

// same reports whether the file that the process named still has the name, and unless it is a draft, its old time of
// modification.
func (k *kept) same() bool {
	var st unix.Stat_t
	err := unix.Fstatat(int(k.dir.Fd()), k.name, &st, unix.AT_SYMLINK_NOFOLLOW)
	return err == nil && st.Ino == k.st.Ino && st.Dev == k.st.Dev && (k.to != "" || st.Mtim == k.st.Mtim)
}

func (s *server) rename(i fileIndex) (none, error) {
	k, err := element(s.kept, i)
	switch {
	case err != nil:
	case k.to == "":
		err = unix.EPERM
	case k.draft != nil:
		err = outfile.Adopt(k.draft, int(k.dir.Fd()), k.to)
	case !k.same():
		err = unix.ESTALE
	default:
		fd := int(k.dir.Fd())
		err = unix.Renameat(fd, k.name, fd, k.to)
	}
	return none{}, err
}

func (s *server) remove(i fileIndex) (none, error) {
	k, err := element(s.kept, i)
	if err == nil && k.draft == nil && k.same() {
		err = unix.Unlinkat(int(k.dir.Fd()), k.name, 0)
	}
	if err == nil && k.path != "" {
		_ = os.Remove(k.path)
	}
	return none{}, err
}
