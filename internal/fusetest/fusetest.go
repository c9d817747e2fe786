// Package fusetest has a FUSE server that stops answering when a test calls [FS.Silence], for tests of code that
// must not wait for such a server.
//
// [Run] runs a test's function in another process, with its own mount namespace; [Mount] mounts there. Run needs
// /dev/fuse, and root or an unprivileged user namespace (unshare -Urm).
package fusetest

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/internal/testkit"
)

const role = "VNIC_TEST_FUSE"

// Size is the size of the only file of an FS, in bytes.
const Size = 64 << 10

// Run runs test in another process, which may mount file systems, and may leave open descriptors whose close
// would wait for a server. It skips t if it cannot open /dev/fuse or start the process, and fails t if test fails
// there or takes longer than 2 minutes.
func Run(t *testing.T, test func(t *testing.T)) {
	t.Helper()
	switch os.Getenv(role) {
	case "test":
		defer func() { // ends the process before TestMain can check for leaked goroutines and descriptors
			// End the servers first: the end of this process closes its files, and the close of a file waits for its
			// server's answer. Pdeathsig kills a server only when the thread that started it has ended, which may be
			// after the close.
			for _, f := range mounted {
				f.End()
			}
			if t.Failed() {
				os.Exit(1)
			}
			os.Exit(0)
		}()
		if err := unix.Mount("", "/", "", unix.MS_PRIVATE|unix.MS_REC, ""); err != nil {
			t.Fatal("mounts of our own: ", err)
		}
		test(t)
		return
	case "server":
		serve(os.NewFile(3, "/dev/fuse"))
		os.Exit(0)
	}
	if f, err := os.OpenFile("/dev/fuse", os.O_RDWR, 0); err != nil {
		t.Skip("needs /dev/fuse (modprobe fuse; as root, or with mode 0666 as udev makes it): ", err)
	} else if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	c := self(t, "test", 2*time.Minute)
	c.SysProcAttr.Cloneflags = unix.CLONE_NEWNS
	if os.Getuid() != 0 {
		c.SysProcAttr.Cloneflags |= unix.CLONE_NEWUSER
		c.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{HostID: os.Getuid(), Size: 1}}
		c.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{HostID: os.Getgid(), Size: 1}}
	}
	var out []byte
	err := testkit.MayClone(c.SysProcAttr.Cloneflags)
	if err == nil {
		out, err = c.CombinedOutput()
	}
	if exit := new(exec.ExitError); errors.As(err, &exit) {
		t.Errorf("%v:\n%s", err, out)
	} else if err != nil {
		t.Skip("needs root, or an unprivileged user namespace (unshare -Urm): ", err)
	}
}

func self(t *testing.T, as string, limit time.Duration) *exec.Cmd {
	args := []string{"-test.run=^" + strings.ReplaceAll(t.Name(), "/", "$/^") + "$"}
	if testing.Verbose() {
		args = append(args, "-test.v")
	}
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	t.Cleanup(cancel)
	c := exec.CommandContext(ctx, "/proc/self/exe", args...)
	c.Env = append(os.Environ(), role+"="+as)
	c.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: unix.SIGKILL}
	return c
}

// FS is a mounted FUSE file system with one file. Its server is a process, which answers requests until
// [FS.Silence] or [FS.End].
type FS struct {
	Dir    string
	t      *testing.T
	server *exec.Cmd
	talk   io.Closer
	silent io.Reader
}

var mounted []*FS

// Mount mounts an FS, until [FS.End] or the end of t. t must be the argument of the function that [Run] runs, or a
// subtest of it.
func Mount(t *testing.T) *FS {
	t.Helper()
	ok := func(what string, err error) {
		if err != nil {
			t.Helper()
			t.Fatal(what, ": ", err)
		}
	}
	dev, err := unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC, 0)
	ok("/dev/fuse", err)
	f := &FS{Dir: t.TempDir(), t: t, server: self(t, "server", time.Hour)}
	ok("mount of FUSE", unix.Mount("test", f.Dir, "fuse.test", unix.MS_NOSUID|unix.MS_NODEV,
		fmt.Sprintf("fd=%d,rootmode=40000,user_id=0,group_id=0", dev)))
	f.server.ExtraFiles = []*os.File{os.NewFile(uintptr(dev), "/dev/fuse")}
	f.server.Stderr = os.Stderr
	f.talk, err = f.server.StdinPipe()
	ok("pipe", err)
	f.silent, err = f.server.StdoutPipe()
	ok("pipe", err)
	ok("server", f.server.Start())
	_ = f.server.ExtraFiles[0].Close() // now only the server has a descriptor of dev: when it ends, requests fail
	t.Cleanup(f.End)
	mounted = append(mounted, f)
	return f
}

// File opens the file in dir, which is f.Dir or a result of [FS.Overlay], and returns a descriptor, which nothing
// here closes.
func (f *FS) File(dir string) int {
	f.t.Helper()
	fd, err := unix.Open(filepath.Join(dir, "file"), unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		f.t.Fatal("open: ", err)
	}
	return fd
}

// Overlay mounts an overlayfs whose lower layer is f.Dir, until the end of the t of [Mount], and returns the
// directory of the overlayfs.
func (f *FS) Overlay() (dir string) {
	f.t.Helper()
	top := f.t.TempDir()
	if err := unix.Mount("test", top, "tmpfs", 0, ""); err != nil {
		f.t.Fatal("tmpfs: ", err)
	}
	for _, name := range []string{"upper", "work", "all"} {
		if err := os.Mkdir(filepath.Join(top, name), 0o700); err != nil {
			f.t.Fatal(err)
		}
	}
	dir = filepath.Join(top, "all")
	if err := unix.Mount("test", dir, "overlay", 0,
		fmt.Sprintf("lowerdir=%s,upperdir=%s/upper,workdir=%[2]s/work", f.Dir, top)); err != nil {
		f.t.Fatal("overlay: ", err)
	}
	f.t.Cleanup(func() {
		f.End()
		_ = unix.Unmount(dir, unix.MNT_DETACH)
		_ = unix.Unmount(top, unix.MNT_DETACH)
	})
	return dir
}

// Silence makes the server leave all requests unanswered that come after Silence has returned. The server
// still reads requests: a process that waits for the answer to a request that was read waits until [FS.End], and
// can neither be interrupted nor killed.
func (f *FS) Silence() {
	f.t.Helper()
	_ = f.talk.Close()
	if _, err := io.ReadAll(f.silent); err != nil {
		f.t.Fatal(err)
	}
}

// End kills the server, so that waiting requests fail, and unmounts the file system.
func (f *FS) End() {
	_ = f.server.Process.Kill()
	_ = f.server.Wait()
	_ = unix.Unmount(f.Dir, unix.MNT_DETACH)
}

// serve runs an FS's server (include/uapi/linux/fuse.h): it answers requests until standard input ends, and then
// reads them without an answer. It returns if it cannot read from dev.
func serve(dev *os.File) {
	silence := make(chan struct{})
	go func() {
		_, _ = io.ReadAll(os.Stdin)
		close(silence)
		_ = os.Stdout.Close()
	}()
	le := binary.LittleEndian
	b := make([]byte, 1<<20)
	for {
		n, err := unix.Read(int(dev.Fd()), b)
		if err == unix.EINTR || err == unix.ENOENT { // ENOENT: the request was interrupted
			continue
		}
		if err != nil || n < 40 {
			return
		}
		select {
		case <-silence:
			continue
		default:
		}
		opcode, unique, node := le.Uint32(b[4:]), le.Uint64(b[8:]), le.Uint64(b[16:])
		errno, reply := answer(opcode, node, b[40:n])
		if reply == nil && errno == 0 {
			continue // FORGET, BATCH_FORGET, INTERRUPT get no reply
		}
		out := le.AppendUint32(nil, uint32(16+len(reply)))
		out = le.AppendUint32(out, uint32(-int32(errno)))
		out = append(le.AppendUint64(out, unique), reply...)
		if _, err := unix.Write(int(dev.Fd()), out); err != nil && err != unix.ENOENT {
			fmt.Fprintln(os.Stderr, "FUSE server:", opcode, err)
		}
	}
}

func answer(opcode uint32, node uint64, in []byte) (errno syscall.Errno, reply []byte) {
	le := binary.LittleEndian
	attr := func(node uint64) []byte { // struct fuse_attr
		mode, size := uint32(unix.S_IFREG|0o666), uint64(Size)
		if node == 1 {
			mode, size = unix.S_IFDIR|0o777, 0
		}
		a := make([]byte, 88)
		le.PutUint64(a, node)
		le.PutUint64(a[8:], size)
		le.PutUint32(a[60:], mode)
		le.PutUint32(a[64:], 1) // number of links
		le.PutUint32(a[80:], 4096)
		return a
	}
	switch opcode {
	case 2, 36, 42: // FORGET, INTERRUPT, BATCH_FORGET
		return 0, nil
	case 26: // INIT: protocol version 7.31, no features
		reply = make([]byte, 64)
		le.PutUint32(reply, 7)
		le.PutUint32(reply[4:], 31)
		le.PutUint32(reply[20:], 1<<16) // max_write
		return 0, reply
	case 1: // LOOKUP: the entry and its attributes are valid for 0 s
		if string(in) != "file\x00" {
			return unix.ENOENT, nil
		}
		reply = make([]byte, 40, 128)
		le.PutUint64(reply, 2)
		return 0, append(reply, attr(2)...)
	case 3, 4: // GETATTR, SETATTR
		return 0, append(make([]byte, 16), attr(node)...)
	case 14, 27: // OPEN, OPENDIR
		return 0, make([]byte, 16)
	case 15: // READ
		off, n := le.Uint64(in[8:]), uint64(le.Uint32(in[16:]))
		return 0, append([]byte{}, make([]byte, min(n, Size-min(off, Size)))...)
	case 17: // STATFS
		return 0, make([]byte, 80)
	case 18, 25, 29, 34: // RELEASE, FLUSH, RELEASEDIR, ACCESS
		return 0, []byte{}
	}
	return unix.ENOSYS, nil
}
