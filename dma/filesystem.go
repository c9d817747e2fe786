package dma

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// ErrBlocked is the cause of an error about a descriptor whose file system did not answer a system call in time.
var ErrBlocked = errors.New("the file system does not answer")

// localFileSystems are those that answer system calls and page faults out of this machine's memory
// and disks, as /proc/self/mountinfo names them. All others are refused, because what they ask may
// be a server of the peer's own, which never answers: FUSE, network file systems, and overlayfs as
// well, whose layers may be FUSE. (mountinfo names an overlay's layers, but by paths that were looked
// up when and where it was mounted: what lies there cannot be told.) ramfs and others that number
// their inodes with 32 bits are not in the list either, see FileID.
var localFileSystems = []string{"bcachefs", "btrfs", "devtmpfs", "exfat", "ext2", "ext3", "ext4", "f2fs", "hugetlbfs",
	"jfs", "nilfs2", "ntfs3", "reiserfs", "tmpfs", "vfat", "xfs", "zfs"}

// isLocal makes sure, without asking a server, that none is behind fd. The system calls here are
// answered by the kernel alone: statx(2), fstat(2), fstatfs(2), and close(2) as well, of a file on
// FUSE wait for its server, and no signal ends that (fs/fuse/dev.c, request_wait_answer).
func isLocal(fd int) error {
	// Only files of tmpfs and hugetlbfs, memfds among them, have seals (mm/memfd.c, memfd_file_seals_ptr).
	switch _, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0); {
	case err == nil:
		return nil
	case errors.Is(err, unix.EBADF) && !isOpen(fd):
		return err
	}
	name, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", fd))
	if err != nil {
		return err
	}
	if !strings.HasPrefix(name, "/") && !strings.HasPrefix(name, "(unreachable)") {
		return nil // a pipe, a socket, an anon_inode (fs/d_path.c: what has a path has a slash)
	}
	mount, err := mountOf(fd)
	if err != nil {
		return err
	}
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return err
	}
	defer f.Close()
	return checkMount(f, mount)
}

// isOpen: F_GET_SEALS of a descriptor that was opened with O_PATH is EBADF as well.
func isOpen(fd int) bool {
	_, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0)
	return err == nil
}

// mountOf returns the identifier of the mount that fd was opened through. (statx has it too, but asks
// the file system for the rest of its answer.)
func mountOf(fd int) (string, error) {
	info, err := os.ReadFile(fmt.Sprintf("/proc/self/fdinfo/%d", fd))
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(string(info)) { // proc_pid_fdinfo(5)
		if id, ok := strings.CutPrefix(line, "mnt_id:"); ok {
			return strings.TrimSpace(id), nil
		}
	}
	return "", errors.New("/proc/self/fdinfo has no mnt_id")
}

// checkMount refuses a mount that is not of a local file system, or not in the list.
func checkMount(mountinfo io.Reader, mount string) error {
	lines := bufio.NewScanner(mountinfo)
	lines.Buffer(nil, 1<<20) // an overlay's options are a page each at the most, and mount points paths
	for lines.Scan() {
		// proc_pid_mountinfo(5): identifier, ..., and behind a single hyphen the type of the file system. No field has
		// a space in it, and the hyphen comes after the sixth.
		f := strings.Fields(lines.Text())
		if len(f) < 7 || f[0] != mount {
			continue
		}
		i := slices.Index(f[6:], "-") + 6
		if i < 6 || i+1 >= len(f) {
			break
		}
		if kind := f[i+1]; !slices.Contains(localFileSystems, kind) {
			return fmt.Errorf("on %s, where a server may be asked, which need not answer: use a memfd, or a file in /dev/shm",
				kind)
		}
		return nil
	}
	if err := lines.Err(); err != nil {
		return fmt.Errorf("/proc/self/mountinfo: %w", err)
	}
	return fmt.Errorf("on a mount that this process cannot see (%s), where a server may be asked, which need not answer: "+
		"use a memfd, or a file in /dev/shm", mount)
}

// statLimit is how long a file system may take to say what a file is.
const statLimit = 2 * time.Second

// statFile asks the file system for what a FileID is made of, the mode and the size. A test replaces it.
var statFile = func(fd int, st *unix.Statx_t) error {
	return unix.Statx(fd, "", unix.AT_EMPTY_PATH|unix.AT_STATX_DONT_SYNC, unix.STATX_BASIC_STATS|unix.STATX_BTIME, st)
}

// stat is statFile, in time. A disk that does not answer costs its Space a goroutine and a
// descriptor, which end when it does; the peer's connection ends with ErrBlocked.
func stat(fd int) (st unix.Statx_t, err error) {
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0); err == nil { // memory
		return st, statFile(fd, &st)
	}
	own, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0) // fd is another file's once the caller has gone on
	if err != nil {
		return st, err
	}
	type answer struct {
		st  unix.Statx_t
		err error
	}
	done := make(chan answer, 1)
	go func() {
		var a answer
		a.err = statFile(own, &a.st)
		_ = unix.Close(own)
		done <- a
	}()
	limit := time.NewTimer(statLimit)
	defer limit.Stop()
	select {
	case a := <-done:
		return a.st, a.err
	case <-limit.C:
		return st, fmt.Errorf("%w in %v", ErrBlocked, statLimit)
	}
}

// A FileID tells files apart that are there at the same time.
//
// Device and inode are not enough: hugetlbfs numbers its inodes with 32 bits, which every pipe uses
// up as well, so a peer can wait until its own file has the number of another guest's. Nothing else
// of such a file is beyond its owner's reach (its times are those of its last change, its size is
// what it was made), so hugetlbfs files are known within one Space only. All others have a time of birth
// (tmpfs since Linux 5.18), which nobody can set, or inode numbers that do not come again.
type FileID struct {
	dev, ino  uint64
	birth     int64 // ns since 1970; 0 if the file system does not know
	hugetlbfs bool
	space     *Space // of a hugetlbfs file: the one that knows it
}

// in is the identity of the file to a Space.
func (id FileID) in(s *Space) FileID {
	if id.hugetlbfs {
		id.space = s
	}
	return id
}

func (id FileID) String() string { return fmt.Sprintf("%d:%d", id.dev, id.ino) }

// FileIDOf tells which file fd is, of those that can be a guest's memory. Errors are those of Files.Open. It asks no
// server for it.
func FileIDOf(fd int) (FileID, error) {
	id, _, err := check(fd)
	return id, err
}

// check looks at fd before anything is mapped.
func check(fd int) (id FileID, size uint64, err error) {
	if err := isLocal(fd); err != nil {
		return id, 0, fmt.Errorf("%w: fd %d: %w", ErrBadFile, fd, err)
	}
	st, err := stat(fd)
	if err != nil {
		return id, 0, fmt.Errorf("%w: fd %d: %w", ErrBadFile, fd, err)
	}
	id = FileID{dev: unix.Mkdev(st.Dev_major, st.Dev_minor), ino: st.Ino}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return id, 0, fmt.Errorf("%w: fd %d: mode %#o: not a regular file: use a memfd, or a file in /dev/shm or hugetlbfs",
			ErrBadFile, fd, st.Mode)
	}
	if st.Mask&unix.STATX_BTIME != 0 {
		id.birth = st.Btime.Sec*1e9 + int64(st.Btime.Nsec)
	}
	fl, err := unix.FcntlInt(uintptr(fd), unix.F_GETFL, 0)
	if err != nil {
		return id, 0, fmt.Errorf("%w: fd %d: %w", ErrBadFile, fd, err)
	}
	if fl&unix.O_ACCMODE != unix.O_RDWR {
		return id, 0, fmt.Errorf("%w: file %v: not open for reading and writing", ErrBadFile, id)
	}
	if st.Size == 0 || st.Size > maxFile {
		return id, 0, fmt.Errorf("%w: file %v: size %d", ErrBadFile, id, st.Size)
	}
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0); err == nil { // tmpfs or hugetlbfs, which ask nobody
		var vfs unix.Statfs_t
		if err := unix.Fstatfs(fd, &vfs); err != nil {
			return id, 0, fmt.Errorf("%w: fd %d: %w", ErrBadFile, fd, err)
		}
		id.hugetlbfs = uint32(vfs.Type) == unix.HUGETLBFS_MAGIC
	}
	return id, st.Size, nil
}

// maxKept is how many descriptors a Space keeps that may not be closed.
const maxKept = 64

// Discard closes a descriptor that a peer has sent, unless a server might be asked: the last thing that
// a process may do with a file on FUSE is to close it, since that waits for the server, and neither
// a signal nor exit_group(2) ends the wait (fs/fuse/file.c, fuse_flush). Such a descriptor is kept open
// until the process ends, when Linux 6.2 and newer do not wait. DiscardErr counts them.
func (s *Space) Discard(fd int) {
	switch err := isLocal(fd); {
	case fd < 0:
	case err == nil:
		_ = unix.Close(fd) // of a descriptor that is ours: EIO at worst, and gone all the same
	default:
		s.kept.Add(1)
	}
}

// DiscardErr is an error, ErrBadFile, once Discard keeps more descriptors than a process can afford for one device:
// its owner then serves nobody any more.
func (s *Space) DiscardErr() error {
	if n := s.kept.Load(); n > maxKept {
		return fmt.Errorf("space %s: %w: %d descriptors came that nobody may close, as a server might be asked, which need "+
			"not answer: restart this process, and use memfds, or files in /dev/shm", s.name, ErrBadFile, n)
	}
	return nil
}
