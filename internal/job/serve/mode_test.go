package serve

import (
	"encoding/binary"
	"errors"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/internal/testkit"
)

// stranger is an environment variable with a path: this program, as another user, then connects there and
// exits with the errno.
const stranger = "VNIC_TEST_STRANGER"

func knock(path string) int {
	c, err := net.Dial("unix", path)
	var errno syscall.Errno
	switch {
	case err == nil:
		_ = c.Close()
		return 0
	case errors.As(err, &errno):
		return int(errno)
	}
	return 255
}

func umask(t *testing.T, mask int) {
	old := syscall.Umask(mask)
	t.Cleanup(func() { syscall.Umask(old) })
}

// A socket gets mode 0600 whatever the umask.
//
// Invariant: vnic serve: Only its own user and root can open a socket, whatever the umask, unless
// --socket-group shares it.
func TestSocketIsPrivate(t *testing.T) {
	testkit.LeavesNothing(t)
	for _, mask := range []int{0, 0o002, 0o022, 0o077, 0o177, 0o277, 0o777} {
		dir := t.TempDir()
		path := filepath.Join(dir, "s")
		if mask == 0 {
			old := syscall.Umask(0)
			stale(t, path)
			syscall.Umask(old)
		}
		old := syscall.Umask(mask)
		l, err := listen(t.Context(), path)
		syscall.Umask(old)
		if err != nil {
			t.Fatalf("umask %#o: %v", mask, err)
		}
		if st, err := os.Lstat(path); err != nil || st.Mode() != fs.ModeSocket|0o600 {
			t.Errorf("umask %#o: %v, %v", mask, st.Mode(), err)
		}
		if code := knock(path); code != 0 {
			t.Errorf("umask %#o: its user cannot connect: %v", mask, syscall.Errno(code))
		}
		testkit.OK(t, l.Close())
		if list, err := os.ReadDir(dir); err != nil || len(list) != 0 {
			t.Errorf("left: %v, %v", list, err)
		}
	}
}

// With umask 0 the socket's file is created with its final mode.
//
// Invariant: vnic serve: Only its own user and root can open a socket, whatever the umask, unless
// --socket-group shares it.
func TestSocketIsPrivateFromTheFirst(t *testing.T) {
	testkit.LeavesNothing(t)
	dir := t.TempDir()
	fd := testkit.Must(unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK))(t)
	defer unix.Close(fd)
	testkit.Must(unix.InotifyAddWatch(fd, dir, unix.IN_CREATE|unix.IN_ATTRIB|unix.IN_MOVED_TO))(t)
	umask(t, 0)
	l := testkit.Must(listen(t.Context(), filepath.Join(dir, "s")))(t)
	defer l.Close()
	var b [4096]byte
	n := testkit.Must(unix.Read(fd, b[:]))(t)
	var events []uint32
	for pos := 0; pos+unix.SizeofInotifyEvent <= n; {
		events = append(events, binary.NativeEndian.Uint32(b[pos+4:]))
		pos += unix.SizeofInotifyEvent + int(binary.NativeEndian.Uint32(b[pos+12:]))
	}
	if len(events) != 1 || events[0] != unix.IN_CREATE {
		t.Errorf("events %#x, want one IN_CREATE: the file was changed after it was made", events)
	}
}

// connect(2) to a socket of listen fails for another user's process, also with umask 0.
//
// Invariant: vnic serve: Only its own user and root can open a socket, whatever the umask, unless
// --socket-group shares it.
func TestOthersCannotConnect(t *testing.T) {
	testkit.LeavesNothing(t)
	if os.Geteuid() != 0 {
		t.Log("not root: nobody to be")
		return
	}
	dir := testkit.Must(os.MkdirTemp("/tmp", "vnic-mode"))(t)
	defer os.RemoveAll(dir)
	testkit.OK(t, os.Chmod(dir, 0o755))
	umask(t, 0)
	// for comparison: a stranger can connect to a socket of net.Listen
	for _, c := range []struct {
		name string
		make func(path string) (net.Listener, error)
		want syscall.Errno
	}{
		{"open", func(path string) (net.Listener, error) { return net.Listen("unix", path) }, 0},
		{"ours", func(path string) (net.Listener, error) { return listen(t.Context(), path) }, syscall.EACCES},
	} {
		path := filepath.Join(dir, c.name)
		l := testkit.Must(c.make(path))(t)
		code := 0
		cmd := command(t, dir)
		cmd.Env = append(os.Environ(), stranger+"="+path)
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
		var exit *exec.ExitError
		if err := cmd.Run(); errors.As(err, &exit) {
			code = exit.ExitCode()
		} else if err != nil {
			t.Fatal(err)
		}
		if syscall.Errno(code) != c.want {
			t.Errorf("%s: %v, want %v", c.name, syscall.Errno(code), c.want)
		}
		testkit.OK(t, l.Close())
	}
}

func command(t *testing.T, dir string) *exec.Cmd {
	t.Helper()
	b := testkit.Must(os.ReadFile("/proc/self/exe"))(t)
	name := filepath.Join(dir, "program")
	testkit.OK(t, os.WriteFile(name, b, 0o755))
	return exec.Command(name)
}
