package gpufd

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/internal/access"
	"vnic.dev/vnic/internal/limits"
	"vnic.dev/vnic/internal/scm"
	"vnic.dev/vnic/internal/testkit"
)

// starter names the environment variable that makes the test's program call start for the sockets in its value.
const starter = "VNIC_TEST_STARTER"

func TestMain(m *testing.M) {
	if sockets := os.Getenv(starter); sockets != "" {
		fmt.Fprintln(os.Stderr, start(strings.Split(sockets, " ")))
		os.Exit(1)
	}
	testkit.Main(m)
}

const othersEnv = `for n in 5 6 7 8 9 10 11 12; do readlink /proc/$$/fd/$n; done; true`

func start(sockets []string) error {
	command := []string{"sh", "-c", "cat /proc/self/fd/3; cat /proc/self/fd/4; " + othersEnv}
	if err := Check(sockets, command); err != nil {
		return err
	}
	var fds []int
	for _, s := range sockets {
		fd, err := Receive(context.Background(), s)
		if err != nil {
			return err
		}
		fds = append(fds, fd)
	}
	return Exec("/bin/sh", command, fds)
}

func memory(t *testing.T, what string) int {
	t.Helper()
	fd := testkit.Must(unix.MemfdCreate("vnic-gpu", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING))(t)
	t.Cleanup(func() { _ = unix.Close(fd) })
	testkit.Must(unix.Write(fd, []byte(what)))(t)
	const seals = unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_SEAL
	testkit.Must(unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals))(t)
	return fd
}

func shared(t *testing.T, memory int) (path string, s *Server) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "s.gpu")
	l := testkit.Must(net.ListenUnix("unix", &net.UnixAddr{Net: "unix", Name: path}))(t)
	s = &Server{Note: t.Logf}
	ctx, stop := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { s.Serve(ctx, l, memory, access.Rule{}) })
	t.Cleanup(func() {
		stop()
		wg.Wait()
		s.Close()
		_ = l.Close()
	})
	return path, s
}

func connect(t *testing.T, path string) *net.UnixConn {
	t.Helper()
	return testkit.Must(net.DialUnix("unix", nil, &net.UnixAddr{Net: "unix", Name: path}))(t)
}

func answer(t *testing.T, c *net.UnixConn) (text string, fds int) {
	t.Helper()
	testkit.OK(t, c.SetReadDeadline(time.Now().Add(testkit.Patience)))
	b, oob := make([]byte, maxText), make([]byte, 64)
	n, oobn, _, _, err := c.ReadMsgUnix(b, oob)
	testkit.OK(t, err)
	var got scm.FDs
	defer got.Close()
	testkit.OK(t, got.Collect(oob[:oobn], scm.MaxFDs))
	return string(b[:n]), got.Len()
}

// Invariant: vnic serve: A GPU's memory that is given away cannot be cut, and is nobody else's open file.
func TestMemoryIsGiven(t *testing.T) {
	testkit.LeavesNothing(t)
	group := memory(t, "of the GPU")
	path, _ := shared(t, group)
	var fds [2]int
	for i := range fds {
		fds[i] = testkit.Must(Receive(t.Context(), path))(t)
		defer unix.Close(fds[i])
	}
	m := testkit.Must(unix.Mmap(fds[0], 0, 10, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED))(t)
	defer func() { testkit.OK(t, unix.Munmap(m)) }()
	testkit.Equal(t, "mapped", string(m), "of the GPU")
	for _, size := range []int64{0, 9, 11} {
		testkit.ErrorIs(t, unix.Ftruncate(fds[0], size), unix.EPERM)
	}
	_, err := unix.FcntlInt(uintptr(fds[0]), unix.F_ADD_SEALS, unix.F_SEAL_WRITE)
	testkit.ErrorIs(t, err, unix.EPERM)
	testkit.OK(t, unix.SetNonblock(fds[0], true))
	testkit.Must(unix.Seek(fds[0], 3, io.SeekStart))(t)
	for _, fd := range []int{group, fds[1]} {
		if flags := testkit.Must(unix.FcntlInt(uintptr(fd), unix.F_GETFL, 0))(t); flags&unix.O_NONBLOCK != 0 {
			t.Errorf("flags %#x: of the same open file", flags)
		}
		if pos := testkit.Must(unix.Seek(fd, 0, io.SeekCurrent))(t); pos == 3 {
			t.Error("the position is that of the same open file")
		}
	}
}

// Invariant: vnic serve: What those cost who ask for a GPU's memory is bounded.
func TestPeersThatReceiveNothing(t *testing.T) {
	testkit.LeavesNothing(t)
	path, s := shared(t, memory(t, "x"))
	descriptors := func() int { return len(testkit.Must(os.ReadDir("/proc/self/fd"))(t)) }
	kept := func() int {
		s.mu.Lock()
		defer s.mu.Unlock()
		return len(s.unread)
	}
	before, goroutines := descriptors(), runtime.NumGoroutine()
	for range 3 {
		var silent []*net.UnixConn
		for range maxOfUser {
			c := connect(t, path)
			testkit.OK(t, c.SetReadDeadline(time.Now().Add(testkit.Patience)))
			raw := testkit.Must(c.SyscallConn())(t)
			testkit.OK(t, raw.Read(func(fd uintptr) bool {
				n, _, err := unix.Recvfrom(int(fd), make([]byte, 1), unix.MSG_PEEK|unix.MSG_DONTWAIT)
				return err == nil && n == 1
			}))
			silent = append(silent, c)
		}
		testkit.Equal(t, "kept", kept(), maxOfUser)
		for range 10 {
			c := connect(t, path)
			text, fds := answer(t, c)
			if want := fmt.Sprintf("%d connections of this user", maxOfUser); !strings.HasPrefix(text, want) || fds != 0 {
				t.Errorf("%q, %d descriptors", text, fds)
			}
			testkit.OK(t, c.Close())
		}
		_, err := Receive(t.Context(), path)
		testkit.ErrorSays(t, err, "vnic serve gives no memory: 64 connections of this user have not received theirs")
		testkit.Equal(t, "kept", kept(), maxOfUser)
		for _, c := range silent {
			testkit.OK(t, c.Close())
		}
		fd := testkit.Must(Receive(t.Context(), path))(t)
		testkit.OK(t, unix.Close(fd))
		testkit.Equal(t, "kept when they have gone", kept(), 1)
	}
	for range 10_000 {
		c, err := dial(t.Context(), path)
		testkit.OK(t, err)
		testkit.OK(t, c.Close())
	}
	fd := testkit.Must(Receive(t.Context(), path))(t)
	testkit.OK(t, unix.Close(fd))
	fd = testkit.Must(Receive(t.Context(), path))(t)
	testkit.OK(t, unix.Close(fd))
	if n := kept(); n > 2 {
		t.Errorf("%d are kept", n)
	}
	if n := descriptors(); n > before+2 {
		t.Errorf("%d descriptors, of %d before", n, before)
	}
	if n := runtime.NumGoroutine(); n > goroutines {
		t.Errorf("%d goroutines, of %d before", n, goroutines)
	}
}

func TestBoundsOfUnreceived(t *testing.T) {
	testkit.LeavesNothing(t)
	s := &Server{}
	var far []*net.UnixConn
	for i := range maxInAll {
		a, b, err := scm.Pair()
		testkit.OK(t, err)
		far = append(far, b)
		testkit.OK(t, message(a, []byte{0}, nil))
		uid := uint32(1000 + i/maxOfUser)
		testkit.Equal(t, "full", s.full(uid), "")
		s.unread = append(s.unread, unread{a, uid})
	}
	testkit.Equal(t, "a user", s.full(1000), "64 connections of this user have not received theirs")
	testkit.Equal(t, "another", s.full(1), "256 connections have not received theirs")
	testkit.Must(far[0].Read(make([]byte, 2)))(t)
	testkit.Equal(t, "a user, after one was received", s.full(1000), "")
	testkit.Equal(t, "kept", len(s.unread), maxInAll-1)
	s.Close()
	for _, c := range far {
		testkit.OK(t, c.Close())
	}
}

func TestExec(t *testing.T) {
	a, _ := shared(t, memory(t, "first\n"))
	b, _ := shared(t, memory(t, "second\n"))
	inherited := testkit.Must(exec.Command("sh", "-c", othersEnv).Output())(t)
	for range 20 {
		cmd := exec.Command("/proc/self/exe")
		cmd.Env = append(os.Environ(), starter+"="+a+" "+b)
		out, err := cmd.CombinedOutput()
		testkit.OK(t, err)
		testkit.Equal(t, "output", string(out), "first\nsecond\n"+string(inherited))
	}
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), starter+"="+a)
	null := testkit.Must(os.Open(os.DevNull))(t)
	defer null.Close()
	cmd.ExtraFiles = []*os.File{null}
	out, err := cmd.CombinedOutput()
	if err == nil || !strings.HasPrefix(string(out), "descriptor 3 is open already") {
		t.Errorf("%v, %s", err, out)
	}
	cmd = exec.Command("sh", "-c", `ulimit -n 8; exec "$0"`, testkit.Must(os.Executable())(t))
	cmd.Env = append(os.Environ(), starter+"="+strings.Repeat(a+" ", 3)+b)
	if out, err = cmd.CombinedOutput(); err == nil {
		t.Errorf("with 8 descriptors: %s", out)
	}
}

func TestWrongCommandsAreRefused(t *testing.T) {
	for _, c := range []struct {
		sockets, command []string
		says             string
	}{
		{nil, []string{"x"}, "no socket: vnic gpu-fd SOCKET... -- COMMAND"},
		{[]string{"a"}, nil, "no command behind --: vnic gpu-fd SOCKET... -- COMMAND"},
		{[]string{""}, []string{"x"}, "a socket has no name"},
		{[]string{"a", "./a"}, []string{"x"}, "./a: twice"},
		{[]string{"a"}, []string{"x", "--mem=/proc/self/fd/3,/proc/self/fd/4"},
			"the command has /proc/self/fd/4, and with 1 socket the last descriptor is 3: name a socket for each GPU"},
	} {
		testkit.ErrorSays(t, Check(c.sockets, c.command), c.says)
	}
	testkit.OK(t, Check([]string{"a", "b"}, []string{"x", Path(0), Path(1)}))
}

func TestMistakes(t *testing.T) {
	testkit.LeavesNothing(t)
	defer func(was limits.Limit) { patience = was }(patience)
	patience = limits.Limit(testkit.Patience)
	dir := t.TempDir()
	serves := func(name string, do func(*net.UnixConn)) string {
		path := filepath.Join(dir, name)
		l := testkit.Must(net.ListenUnix("unix", &net.UnixAddr{Net: "unix", Name: path}))(t)
		t.Cleanup(func() { _ = l.Close() })
		go func() {
			for {
				c, err := l.AcceptUnix()
				if err != nil {
					return
				}
				do(c)
			}
		}()
		return path
	}
	gives := func(b string, fds ...int) func(*net.UnixConn) {
		return func(c *net.UnixConn) {
			_, _, _ = c.WriteMsgUnix([]byte(b), unix.UnixRights(fds...), nil)
			_ = c.Close()
		}
	}
	group := memory(t, "x")
	silent := func(c *net.UnixConn) {
		_, _ = c.Read(make([]byte, 1))
		_ = c.Close()
	}
	for path, want := range map[string]string{
		serves("hangs-up", func(c *net.UnixConn) { _ = c.Close() }): "hung up without an answer",
		serves("refuses", gives("no\x1b[31m, never")):               "vnic serve gives no memory: no, never",
		serves("byte", gives("\x00")):                               "an answer of 1 bytes with 0 descriptors",
		serves("two", gives("\x00", group, group)):                  "an answer of 1 bytes with 2 descriptors",
		serves("file", gives("\x00", 2)):                            "no GPU's memory of vnic's",
	} {
		_, err := Receive(t.Context(), path)
		testkit.ErrorSays(t, err, path+": ")
		testkit.ErrorSays(t, err, want)
	}
	testkit.ErrorSays(t, testkit.Err(Receive(t.Context(), strings.Repeat("x", MaxPath+1))),
		"108 bytes, a socket's name has 107 at most")
	port := filepath.Join(dir, "port")
	serves("port"+Suffix, silent)
	testkit.ErrorSays(t, testkit.Err(Receive(t.Context(), port)),
		port+": that is the socket of a port: its GPU's is "+port+Suffix)
	nobody, err := serves("silent", silent), error(nil)
	patience = limits.Limit(20 * time.Millisecond)
	testkit.Eventually(t, "a connection to the silent one", func() bool { // a short patience may end before the connection
		patience *= 2
		_, err = Receive(t.Context(), nobody)
		return !strings.Contains(err.Error(), "nobody takes connections there")
	})
	testkit.ErrorSays(t, err, nobody+": no answer: that is no socket of a GPU's")
	patience = limits.Limit(testkit.Patience)
	fds := testkit.Must(unix.Socketpair(unix.AF_UNIX, unix.SOCK_DGRAM, 0))(t)
	defer unix.Close(fds[0])
	defer unix.Close(fds[1])
	packets := filepath.Join(dir, "packets")
	testkit.OK(t, unix.Bind(fds[0], &unix.SockaddrUnix{Name: packets}))
	_, err = Receive(t.Context(), packets)
	testkit.ErrorSays(t, err, "a socket of another type")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = Receive(ctx, nobody)
	if err == nil || strings.Contains(err.Error(), "no answer") {
		t.Errorf("told to end: %v", err)
	}
}
