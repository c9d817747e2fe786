// Package fusetest has a FUSE server that falls silent, for tests that may not wait for one: any user
// may mount FUSE (fusermount), open files there, and hand their descriptors to others.
//
// Run runs a test once more, in a process with mounts of its own; Mount mounts there. It takes root, or
// an unprivileged user namespace (unshare -Urm) where the kernel allows one, and /dev/fuse.
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

// role is the environment's variable that says what a process of the test is for.
const role = "VNIC_TEST_FUSE"

// Size is that of the file.
const Size = 64 << 10

// Run runs test in a process of its own, which may mount file systems, and leave descriptors that
// nobody may close. It skips, and says why, where this machine allows none.
func Run(t *testing.T, test func(t *testing.T)) {
	t.Helper()
	switch os.Getenv(role) {
	case "test":
		defer func() { // not through TestMain, which looks for what is left
			// As long as a server is silent this process cannot end: that closes files, which asks the server. The
			// servers would be killed behind it, or before, if the thread that started them is not the last to end.
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
	c := self(t, "test", 2*time.Minute) // only of a test that fails
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

// self is this test in another process.
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

// FS is a mounted FUSE with a file in it, whose server answers until Silence.
type FS struct {
	Dir    string
	t      *testing.T
	server *exec.Cmd
	talk   io.Closer
	silent io.Reader
}

// mounted are the file systems that this process has mounted.
var mounted []*FS

// Mount mounts one until the end of the test, in Run.
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
	_ = f.server.ExtraFiles[0].Close() // the server's is the last: once that has ended, nobody waits any more
	t.Cleanup(f.End)
	mounted = append(mounted, f)
	return f
}

// File is the descriptor of the file at a path below Dir or on an overlay of it. Nobody closes it.
func (f *FS) File(dir string) int {
	f.t.Helper()
	fd, err := unix.Open(filepath.Join(dir, "file"), unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		f.t.Fatal("open: ", err)
	}
	return fd
}

// Overlay mounts an overlayfs whose lower layer is Dir.
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

// Silence returns once the server answers nothing any more. It still takes what it is asked: who asks
// waits, and can neither be interrupted nor killed.
func (f *FS) Silence() {
	f.t.Helper()
	_ = f.talk.Close()
	if _, err := io.ReadAll(f.silent); err != nil {
		f.t.Fatal(err)
	}
}

// End ends the server: all who wait get an error.
func (f *FS) End() {
	_ = f.server.Process.Kill()
	_ = f.server.Wait()
	_ = unix.Unmount(f.Dir, unix.MNT_DETACH)
}

// serve answers the kernel's requests until the end of standard input (include/uapi/linux/fuse.h).
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
		if err == unix.EINTR || err == unix.ENOENT { // interrupted, or the request was
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
			continue // FORGET, BATCH_FORGET, INTERRUPT have none
		}
		out := le.AppendUint32(nil, uint32(16+len(reply)))
		out = le.AppendUint32(out, uint32(-int32(errno)))
		out = append(le.AppendUint64(out, unique), reply...)
		if _, err := unix.Write(int(dev.Fd()), out); err != nil && err != unix.ENOENT {
			fmt.Fprintln(os.Stderr, "FUSE server:", opcode, err)
		}
	}
}

// answer makes the reply to one request.
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
		le.PutUint32(a[64:], 1) // links
		le.PutUint32(a[80:], 4096)
		return a
	}
	switch opcode {
	case 2, 36, 42: // FORGET, INTERRUPT, BATCH_FORGET
		return 0, nil
	case 26: // INIT: 7.31, no features
		reply = make([]byte, 64)
		le.PutUint32(reply, 7)
		le.PutUint32(reply[4:], 31)
		le.PutUint32(reply[20:], 1<<16) // max_write
		return 0, reply
	case 1: // LOOKUP: the attributes are good for no time at all, so that whoever wants them asks
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
