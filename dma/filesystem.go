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

// ErrBlocked means that a file system has not answered statx within 2 s.
var ErrBlocked = errors.New("the file system does not answer")

// localFileSystems lists file systems that answer system calls and page faults from memory and block
// devices, by their names in /proc/self/mountinfo. It does not list overlayfs, which may have layers of FUSE,
// nor ramfs, which numbers inodes with 32 bits, as hugetlbfs does (FileID).
var localFileSystems = []string{"bcachefs", "btrfs", "devtmpfs", "exfat", "ext2", "ext3", "ext4", "f2fs", "hugetlbfs",
	"jfs", "nilfs2", "ntfs3", "reiserfs", "tmpfs", "vfat", "xfs", "zfs"}

// isLocal returns an error if a server may be behind fd, fd is not open, or /proc does not answer that. statx(2) and
// even close(2) of a file on FUSE may wait for its server; once the server has read the request, no signal ends the
// wait (fs/fuse/dev.c, request_wait_answer).
func isLocal(fd int) error {
	// Only files of tmpfs and hugetlbfs have seals (mm/memfd.c, memfd_file_seals_ptr).
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
		return nil // such as a pipe, a socket or an anon_inode (fs/d_path.c)
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

// isOpen reports whether fd is open. A descriptor opened with O_PATH counts, too.
func isOpen(fd int) bool {
	_, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0)
	return err == nil
}

// mountOf returns the id of fd's mount without statx, which would ask the file system.
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

// checkMount returns an error if the mount with the id mount is not of a file system in localFileSystems, or cannot be
// found in mountinfo.
func checkMount(mountinfo io.Reader, mount string) error {
	lines := bufio.NewScanner(mountinfo)
	lines.Buffer(nil, 1<<20) // the options of an overlay may be long
	for lines.Scan() {
		// proc_pid_mountinfo(5): the type follows a hyphen after at least six fields.
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

// statLimit is how long a file system may take to answer statx.
const statLimit = 2 * time.Second

// statFile calls statx; tests replace it.
var statFile = func(fd int, st *unix.Statx_t) error {
	return unix.Statx(fd, "", unix.AT_EMPTY_PATH|unix.AT_STATX_DONT_SYNC, unix.STATX_BASIC_STATS|unix.STATX_BTIME, st)
}

// stat returns the file's attributes. For a file without seals it waits at most statLimit: then it returns ErrBlocked,
// and its goroutine waits on.
func stat(fd int) (st unix.Statx_t, err error) {
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0); err == nil { // a file of memory
		return st, statFile(fd, &st)
	}
	dup, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0) // the caller may close fd while the goroutine waits
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
		a.err = statFile(dup, &a.st)
		_ = unix.Close(dup)
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

// A FileID identifies a file among all files that exist at the same time, if it is not on hugetlbfs.
//
// Device and inode are not enough: hugetlbfs numbers its inodes with 32 bits, from a counter that pipes
// advance, too, so a peer can wait until its file gets another guest's number. So the FileID of a hugetlbfs
// file is valid within one Space. On most other file systems a FileID has the file's time of birth, too, which the
// owner cannot set (tmpfs since Linux 5.18).
type FileID struct {
	dev, ino  uint64
	birth     int64 // ns since 1970; 0 means unknown
	hugetlbfs bool
	space     *Space // set by in for a file on hugetlbfs: the space where the id is valid; else nil
}

func (id FileID) in(s *Space) FileID {
	if id.hugetlbfs {
		id.space = s
	}
	return id
}

func (id FileID) String() string { return fmt.Sprintf("%d:%d", id.dev, id.ino) }

// FileIDOf returns the identity of the file behind fd, or ErrBadFile if it cannot be a guest's memory. It asks
// no server, and waits at most 2 s for a disk.
func FileIDOf(fd int) (FileID, error) {
	id, _, err := check(fd)
	return id, err
}

// check returns the identity of the file behind fd and its size in bytes, or ErrBadFile if it cannot be a guest's
// memory.
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
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0); err == nil { // a file of memory: Fstatfs asks no server
		var vfs unix.Statfs_t
		if err := unix.Fstatfs(fd, &vfs); err != nil {
			return id, 0, fmt.Errorf("%w: fd %d: %w", ErrBadFile, fd, err)
		}
		id.hugetlbfs = uint32(vfs.Type) == unix.HUGETLBFS_MAGIC
	}
	return id, st.Size, nil
}

// maxKept is how many descriptors Discard may keep; if it has kept more, DiscardErr returns an error.
const maxKept = 64

// Discard closes a peer's descriptor, unless a server may be behind it, for which closing would wait
// (fs/fuse/file.c, fuse_flush). Discard keeps such a descriptor open and counts it. With a negative fd it does nothing.
func (s *Space) Discard(fd int) {
	switch err := isLocal(fd); {
	case fd < 0:
	case err == nil:
		_ = unix.Close(fd) // Linux has closed fd even if this returns EIO
	default:
		s.kept.Add(1)
	}
}

// DiscardErr returns ErrBadFile once Discard has kept more than 64 descriptors for this space: then the device must
// not be served any more.
func (s *Space) DiscardErr() error {
	if n := s.kept.Load(); n > maxKept {
		return fmt.Errorf("space %s: %w: %d descriptors came that nobody may close, as a server might be asked, which need "+
			"not answer: restart this process, and use memfds, or files in /dev/shm", s.name, ErrBadFile, n)
	}
	return nil
}
