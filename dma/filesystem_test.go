package dma

import (
	"errors"
	"os"
	"strings"
	"testing"
	"testing/synctest"

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/internal/testkit"
)

// checkMount accepts a mount whose file system is local, and refuses other mounts and one that mountinfo does not list.
func TestMountsThatAreLocal(t *testing.T) {
	for kind, want := range map[string]string{
		"tmpfs": "", "ext4": "", "xfs": "", "btrfs": "", "hugetlbfs": "", "zfs": "", "devtmpfs": "",
		"fuse": "on fuse", "fuse.sshfs": "on fuse.sshfs", "fuseblk": "on fuseblk", "virtiofs": "on virtiofs",
		"nfs": "on nfs", "nfs4": "on nfs4", "cifs": "on cifs", "smb3": "on smb3", "9p": "on 9p", "ceph": "on ceph",
		"afs": "on afs", "coda": "on coda", "overlay": "on overlay", "ecryptfs": "on ecryptfs", "ramfs": "on ramfs",
		"something.new": "on something.new", "ext4.fuse": "on ext4.fuse",
	} {
		for _, optional := range []string{"", "shared:1 ", "shared:1 master:2 propagate_from:3 unbindable "} {
			info := "21 1 0:20 / /proc rw - proc proc rw\n" +
				"36 21 98:0 /mnt1 /mnt\\0402 rw,noatime " + optional + "- " + kind + " tmpfs rw,lowerdir=/-\n" +
				"37 21 0:36 / - rw - tmpfs tmpfs rw\n"
			err := checkMount(strings.NewReader(info), "36")
			if want == "" {
				testkit.OK(t, err)
			} else {
				testkit.ErrorSays(t, err, want)
			}
		}
	}
	for info, want := range map[string]string{
		"":                                      "cannot see (36)",
		"360 1 0:1 / / rw - tmpfs tmpfs rw\n":   "cannot see (36)",
		"36 1 0:1 / / rw\n":                     "cannot see",
		"36 1 0:1 / / rw shared:1 -\n":          "cannot see",
		"36 1 0:1 / / rw tmpfs tmpfs rw\n":      "cannot see",
		"36 " + strings.Repeat("x", 2<<20) + "": "token too long",
	} {
		testkit.ErrorSays(t, checkMount(strings.NewReader(info), "36"), want)
	}
}

// isLocal accepts a memfd, a pipe and /dev/null, and refuses a file of proc and an invalid descriptor.
func TestDescriptorsThatAreLocal(t *testing.T) {
	r, w, err := os.Pipe()
	testkit.OK(t, err)
	defer r.Close()
	defer w.Close()
	null := testkit.Must(os.Open(os.DevNull))(t)
	defer null.Close()
	for _, fd := range []int{memfd(t, 4096), int(r.Fd()), int(null.Fd())} {
		testkit.OK(t, isLocal(fd))
	}
	testkit.ErrorIs(t, isLocal(-1), unix.EBADF)
	proc := testkit.Must(os.Open("/proc/self/stat"))(t)
	defer proc.Close()
	testkit.ErrorSays(t, isLocal(int(proc.Fd())), "on proc, where a server may be asked")
}

// Invariant: dma: A file whose file system does not answer is refused in time.
func TestBlockedFileSystem(t *testing.T) {
	pipe := [2]int{} // isLocal accepts it, and stat limits the time for it, as it has no seals
	testkit.OK(t, unix.Pipe2(pipe[:], unix.O_CLOEXEC))
	defer unix.Close(pipe[0])
	defer unix.Close(pipe[1])
	defer func(f func(int, *unix.Statx_t) error) { statFile = f }(statFile)
	synctest.Test(t, func(t *testing.T) {
		answer := make(chan struct{})
		statFile = func(int, *unix.Statx_t) error {
			<-answer
			return nil
		}
		files := NewFiles()
		if _, err := files.Open(pipe[0], 1); !errors.Is(err, ErrBlocked) || !errors.Is(err, ErrBadFile) {
			t.Errorf("%v", err)
		}
		close(answer)
	})
}

// Discard does not close a descriptor whose closing might block. Once it has kept more than maxKept, DiscardErr returns
// an error.
func TestDiscard(t *testing.T) {
	s := NewSpace("guest", NewFiles())
	fd := testkit.Must(unix.Dup(memfd(t, 1)))(t)
	s.Discard(fd)
	testkit.ErrorIs(t, testkit.Err(unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0)), unix.EBADF)
	s.Discard(-1)
	testkit.OK(t, s.DiscardErr())
	proc := testkit.Must(os.Open("/proc/self/stat"))(t) // in place of a file on FUSE: isLocal refuses both
	defer proc.Close()
	for range maxKept {
		s.Discard(int(proc.Fd()))
	}
	testkit.OK(t, s.DiscardErr())
	s.Discard(int(proc.Fd()))
	testkit.ErrorIs(t, s.DiscardErr(), ErrBadFile)
	testkit.OK(t, testkit.Err(unix.FcntlInt(proc.Fd(), unix.F_GETFD, 0)))
}

// The kernel reuses inode numbers: FileIDs that differ in the time of birth alone are not equal.
//
// Invariant: dma: A file is identified by its birth time too, if its file system has one; a file of
// hugetlbfs is recognized in one space only.
func TestFilesAreToldApart(t *testing.T) {
	a, b := NewSpace("a", NewFiles()), NewSpace("b", NewFiles())
	id := testkit.Must(FileIDOf(memfd(t, 4096)))(t)
	if id.in(a) != id.in(b) || id.birth == 0 {
		t.Errorf("a memfd (its time of birth takes Linux 5.18): %+v", id)
	}
	later := id
	later.birth++
	if later == id {
		t.Error("one inode, two times of birth: taken for one file")
	}
	fd, err := unix.MemfdCreate("huge", unix.MFD_CLOEXEC|unix.MFD_HUGETLB|unix.MFD_HUGE_2MB)
	if err != nil {
		t.Skip("this kernel has no hugetlbfs with pages of 2 MiB: ", err)
	}
	defer unix.Close(fd)
	truncate(t, fd, 2<<20)
	id = testkit.Must(FileIDOf(fd))(t)
	if id.in(a) == id.in(b) || id.in(nil) == id.in(a) {
		t.Errorf("hugetlbfs: %+v is known in two spaces", id)
	}
}
