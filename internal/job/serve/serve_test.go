package serve

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/internal/atexit"
	"vnic.dev/vnic/internal/driver"
	"vnic.dev/vnic/internal/lab"
	"vnic.dev/vnic/internal/lab/labtest"
	"vnic.dev/vnic/internal/limits"
	"vnic.dev/vnic/internal/sockfile"
	"vnic.dev/vnic/internal/testkit"
	"vnic.dev/vnic/internal/vfiotest"
)

type served struct {
	t     *testing.T
	rep   *Report
	notes chan string
	stop  context.CancelFunc
	done  chan error
}

// serve starts Do, and returns when QEMUs may connect. Do runs until the test ends or calls end.
func serve(t *testing.T, o Options) *served {
	t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	s := &served{t: t, notes: make(chan string, 100), stop: stop, done: make(chan error, 1)}
	ready := make(chan *Report, 1)
	o.Ready = func(r *Report) error { ready <- r; return nil }
	o.Event = func(port, format string, args ...any) { s.notes <- port + ": " + fmt.Sprintf(format, args...) }
	if o.NIC.Model == "" {
		o.NIC.Model = lab.Virtio
	}
	o.takeover = cmp.Or(o.takeover, testkit.Patience) // a guest connects when another one has just left
	go func() { s.done <- Do(ctx, o) }()
	t.Cleanup(func() {
		stop()
		for range s.notes {
		}
	})
	select {
	case s.rep = <-ready:
	case err := <-s.done:
		close(s.notes)
		t.Fatal(err)
	}
	t.Cleanup(func() {
		s.end()
		close(s.notes)
	})
	return s
}

func (s *served) end() {
	s.t.Helper()
	s.stop()
	err := <-s.done
	s.done <- nil // for a second call of end
	testkit.OK(s.t, err)
}

func (s *served) noted(want string) {
	s.t.Helper()
	late := time.After(testkit.Patience)
	for {
		select {
		case n := <-s.notes:
			if strings.Contains(n, want) {
				return
			}
		case <-late:
			s.t.Fatalf("no note of %q", want)
		}
	}
}

func (s *served) guest(i int) *labtest.Guest {
	s.t.Helper()
	return guestOf(s.t, s.rep, i)
}

func guestOf(t testing.TB, rep *Report, i int) *labtest.Guest {
	t.Helper()
	p := rep.Ports[i]
	var gpus []driver.FrontendGPU
	if p.GPUPath != "" {
		f, err := os.OpenFile(p.GPUPath, os.O_RDWR, 0) // as QEMU does
		testkit.OK(t, err)
		defer f.Close()
		gpus = append(gpus, driver.FrontendGPU{FD: int(f.Fd()), ID: i, Size: p.GPUBytes})
	}
	return testkit.Must(labtest.Dial(p.Socket, p.MAC, addrs(p), gpus...))(t)
}

func addrs(p PortReport) []netip.Prefix {
	return []netip.Prefix{netip.MustParsePrefix(p.Addr4), netip.MustParsePrefix(p.Addr6)}
}

func (s *served) talk(a, b *labtest.Guest) {
	s.t.Helper()
	testkit.OK(s.t, errors.Join(a.Exchange(s.t.Context(), b, 200_000), a.Close(), b.Close()))
}

func TestGuestsOnOneServeComeAndGo(t *testing.T) {
	testkit.LeavesNothing(t)
	dir := t.TempDir()
	paths := testkit.Must(Paths([]string{dir + "/n%d"}, 2))(t)
	s := serve(t, Options{Paths: paths, GPUMemory: 2 << 20})
	for range 3 {
		a, b := s.guest(0), s.guest(1)
		if buf, err := a.Register(0, 0, 1<<20); err != nil { // the NIC recognizes the GPU's memory
			t.Error(err)
		} else if err := buf.Close(); err != nil {
			t.Error(err)
		}
		s.talk(a, b)
	}
	a := s.guest(0) // is connected when serve ends
	s.end()
	if err := a.Close(); err == nil {
		t.Log("the guest's driver has not noticed the end")
	}
	if list, err := os.ReadDir(dir); err != nil || len(list) != 0 {
		t.Errorf("left: %v, %v", list, err)
	}
}

// In client mode vnic connects to each QEMU that listens, one after the other.
func TestClientConnectsWheneverQEMUListens(t *testing.T) {
	testkit.LeavesNothing(t)
	path := t.TempDir() + "/q"
	s := serve(t, Options{Paths: []string{path}, Client: true})
	for range 2 {
		l := testkit.Must(net.ListenUnix("unix", &net.UnixAddr{Net: "unix", Name: path}))(t)
		conn, err := l.AcceptUnix()
		testkit.OK(t, errors.Join(err, l.Close()))
		g := testkit.Must(labtest.New(conn, s.rep.Ports[0].MAC, addrs(s.rep.Ports[0])))(t)
		testkit.OK(t, g.Close())
		s.noted("hung up")
	}
}

func TestOpenSocketsAreServed(t *testing.T) {
	testkit.LeavesNothing(t)
	fds := testkit.Must(unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0))(t)
	path := t.TempDir() + "/l"
	l := testkit.Must(net.ListenUnix("unix", &net.UnixAddr{Net: "unix", Name: path}))(t)
	f := testkit.Must(l.File())(t)
	fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	testkit.OK(t, errors.Join(err, f.Close()))
	s := serve(t, Options{FDs: []int{fds[0], fd}})
	if p := s.rep.Ports; p[0].Socket != "" || p[1].Socket != path {
		t.Errorf("%+v", p)
	}
	c := os.NewFile(uintptr(fds[1]), "guest")
	conn, err := net.FileConn(c)
	testkit.OK(t, errors.Join(err, c.Close()))
	a := testkit.Must(labtest.New(conn.(*net.UnixConn), s.rep.Ports[0].MAC, addrs(s.rep.Ports[0])))(t)
	s.talk(a, s.guest(1))
	s.end()
	if _, err := os.Lstat(path); err != nil {
		t.Errorf("a socket that is somebody else's was removed: %v", err)
	}
	testkit.OK(t, l.Close())
}

// With a connected socket alone vnic serve ends with the connection.
func TestEndsWithItsLastConnection(t *testing.T) {
	testkit.LeavesNothing(t)
	fds := testkit.Must(unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0))(t)
	s := serve(t, Options{FDs: fds[:1]})
	testkit.OK(t, unix.Close(fds[1]))
	err := <-s.done // nothing has called stop
	s.done <- nil
	testkit.OK(t, err)
}

func TestWhatIsNoSocketIsRefused(t *testing.T) {
	testkit.LeavesNothing(t)
	fds := testkit.Must(unix.Socketpair(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0))(t)
	defer unix.Close(fds[0])
	defer unix.Close(fds[1])
	null := testkit.Must(os.Open(os.DevNull))(t)
	defer null.Close()
	const foreign = "not a Unix domain socket"
	for fd, want := range map[int]string{fds[0]: "not a stream socket", int(null.Fd()): foreign, 1 << 20: foreign} {
		err := Do(t.Context(), Options{FDs: []int{fd}, NIC: lab.NIC{Model: lab.Virtio}})
		testkit.ErrorSays(t, err, want)
	}
}

// CheckInherited refuses a descriptor that vnic has opened itself.
func TestOwnDescriptorsAreNotInherited(t *testing.T) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM, 0) // inherited descriptors have no close-on-exec
	testkit.OK(t, err)
	defer unix.Close(fds[0])
	defer unix.Close(fds[1])
	testkit.OK(t, CheckInherited([]int{fds[0], 1 << 20}))
	unix.CloseOnExec(fds[1])
	if err := CheckInherited(fds[:]); err == nil ||
		!strings.HasPrefix(err.Error(), fmt.Sprintf("--fd %d: not a descriptor", fds[1])) {
		t.Errorf("%v", err)
	}
}

// Invariant: vnic serve: Of several processes that start at a socket one gets it; a stale socket is
// replaced.
func TestSecondStartIsRefusedAndNotNoticed(t *testing.T) {
	testkit.LeavesNothing(t)
	o := Options{Paths: []string{t.TempDir() + "/s"}}
	s := serve(t, o)
	o.NIC.Model = lab.Virtio
	want := fmt.Sprintf("socket %s: in use: process %d listens there", o.Paths[0], os.Getpid())
	testkit.ErrorSays(t, Do(t.Context(), o), want)
	g := s.guest(0)
	testkit.OK(t, g.Close())
	for _, want := range []string{" connected", " hung up"} {
		if n := <-s.notes; !strings.HasSuffix(n, want) {
			t.Errorf("note %q, want %q", n, want)
		}
	}
}

func stale(t *testing.T, path string) {
	t.Helper()
	l := testkit.Must(net.ListenUnix("unix", &net.UnixAddr{Net: "unix", Name: path}))(t)
	l.SetUnlinkOnClose(false)
	testkit.OK(t, l.Close())
}

// Invariant: vnic serve: Of several processes that start at a socket one gets it; a stale socket is
// replaced.
func TestStaleSocketIsReplacedByOneOfMany(t *testing.T) {
	testkit.LeavesNothing(t)
	path := t.TempDir() + "/s"
	for range 20 {
		stale(t, path)
		const n = 4
		got := make(chan *listener, n)
		for range n {
			go func() {
				l, err := listen(t.Context(), path)
				if err != nil && !strings.Contains(err.Error(), "in use") {
					t.Error(err)
				}
				got <- l
			}()
		}
		var won []*listener
		for range n {
			if l := <-got; l != nil {
				won = append(won, l)
			}
		}
		if len(won) != 1 {
			t.Fatalf("%d have it", len(won))
		}
		if pid, err := sockfile.Listening(path); err != nil || pid != os.Getpid() {
			t.Errorf("no listener at the socket: %d, %v", pid, err)
		}
		testkit.OK(t, won[0].Close())
		_, err := os.Lstat(path)
		testkit.ErrorIs(t, err, fs.ErrNotExist)
	}
}

// Invariant: vnic serve: Files of other programs are left alone.
func TestFilesOfOthersAreLeftAlone(t *testing.T) {
	testkit.LeavesNothing(t)
	dir := t.TempDir()
	file := dir + "/file"
	testkit.OK(t, os.WriteFile(file, []byte("precious"), 0o600))
	_, err := listen(t.Context(), file)
	testkit.ErrorSays(t, err, "no socket")
	if b, err := os.ReadFile(file); err != nil || string(b) != "precious" {
		t.Errorf("%q, %v", b, err)
	}
	path := dir + "/s"
	l := testkit.Must(listen(t.Context(), path))(t)
	testkit.OK(t, os.Remove(path))
	stale(t, path)
	testkit.OK(t, l.Close())
	if _, err := os.Lstat(path); err != nil {
		t.Errorf("another process's socket was removed: %v", err)
	}
	for path, want := range map[string]string{
		dir + "/none/s": "no such file or directory: make its directory, or give another name",
		file + "/s":     "not a directory: give a name in a directory",
	} {
		_, err := listen(t.Context(), path)
		testkit.ErrorSays(t, err, want)
	}
}

// A second QEMU is refused; connections that are silent or send rubbish keep no QEMU out.
//
// Invariant: vnic serve: A NIC has one QEMU at a time, one after the other.
func TestOneQEMUAtATime(t *testing.T) {
	testkit.LeavesNothing(t)
	dir := t.TempDir()
	s := serve(t, Options{Paths: []string{dir + "/a", dir + "/b"}, takeover: limits.Takeover.Here()})
	dial := func() *net.UnixConn {
		c := testkit.Must(net.DialUnix("unix", nil, &net.UnixAddr{Net: "unix", Name: dir + "/a"}))(t)
		return c
	}
	silent := dial()
	defer silent.Close()
	a, b := s.guest(0), s.guest(1)
	second := dial()
	testkit.Must(second.Write([]byte{1}))(t)
	s.noted(fmt.Sprintf("port0: process %d is refused: process %d has this NIC", os.Getpid(), os.Getpid()))
	if _, err := second.Read(make([]byte, 1)); err != io.EOF && !errors.Is(err, unix.ECONNRESET) {
		t.Errorf("the second: %v", err)
	}
	_ = second.Close()
	s.talk(a, b)
	s.noted("hung up") // until a's connection has ended, another one may be refused
	s.noted("hung up")
	for range 20 {
		c := dial()
		testkit.Must(c.Write([]byte(strings.Repeat("rubbish", 10))))(t)
		s.noted("connection ended")
		_ = c.Close()
	}
	s.talk(s.guest(0), s.guest(1))
}

func TestSilentOnesKeepNobodyOut(t *testing.T) {
	testkit.LeavesNothing(t)
	path := t.TempDir() + "/s"
	s := serve(t, Options{Paths: []string{path}, silence: 50 * time.Millisecond})
	var silent []*net.UnixConn
	for range 2 * maxWaiting {
		c := testkit.Must(net.DialUnix("unix", nil, &net.UnixAddr{Net: "unix", Name: path}))(t)
		silent = append(silent, c)
	}
	for _, c := range silent {
		if _, err := c.Read(make([]byte, 1)); err != io.EOF {
			t.Error(err)
		}
		_ = c.Close()
	}
	var g *labtest.Guest
	testkit.Eventually(t, "QEMU comes in", func() (in bool) { // its first byte may come later than Options.silence allows
		p, err := s.rep.Ports[0], error(nil)
		g, err = labtest.Dial(p.Socket, p.MAC, addrs(p))
		return err == nil
	})
	testkit.OK(t, g.Close())
}

func TestGVEIsServedByVFIOUser(t *testing.T) {
	testkit.LeavesNothing(t)
	s := serve(t, Options{Paths: []string{t.TempDir() + "/g"}, NIC: lab.NIC{Model: lab.GVE}, GPUMemory: 4 << 20})
	for range 2 {
		conn := testkit.Must(net.DialUnix("unix", nil, &net.UnixAddr{Net: "unix", Name: s.rep.Ports[0].Socket}))(t)
		c := testkit.Must(vfiotest.Connect(conn))(t)
		testkit.OK(t, c.Close())
		s.noted("hung up")
	}
}

// Do returns no error if its context has ended, returns Ready's error, and leaves no socket.
func TestToldToEndAtOnce(t *testing.T) {
	testkit.LeavesNothing(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	path := filepath.Join(t.TempDir(), "s")
	o := Options{Paths: []string{path}, NIC: lab.NIC{Model: lab.Virtio}, Ready: func(*Report) error { return nil }}
	testkit.OK(t, Do(ctx, o))
	full := errors.New("disk full")
	o.Ready = func(*Report) error { return full }
	testkit.ErrorIs(t, Do(t.Context(), o), full)
	_, err := os.Lstat(path)
	testkit.ErrorIs(t, err, fs.ErrNotExist)
}

// With 64 ports, a port needs at most maxPort bytes, on average.
func TestManyPorts(t *testing.T) {
	testkit.LeavesNothing(t)
	for _, nic := range []string{lab.Virtio, lab.GVE} {
		t.Run(nic, func(t *testing.T) {
			paths := testkit.Must(Paths([]string{t.TempDir() + "/%d"}, 64))(t)
			s := serve(t, Options{Paths: paths, NIC: lab.NIC{Model: nic}})
			t.Logf("%d KiB a port, %d KiB in all", s.rep.PortBytes>>10, s.rep.ResidentBytes>>10)
			if s.rep.PortBytes > 2<<20 {
				t.Errorf("%d bytes a port", s.rep.PortBytes)
			}
			if nic == lab.Virtio {
				s.talk(s.guest(0), s.guest(63))
			}
			s.end()
		})
	}
}

// atexit.Run, which comes before an immediate exit, removes the files of vnic's own sockets, but no file that has
// replaced one.
//
// Invariant: vnic serve: Sockets are removed also when vnic is interrupted twice.
func TestSocketsGoAlsoInAHurry(t *testing.T) {
	dir := t.TempDir()
	var list []*listener
	for _, name := range []string{"a", "b"} {
		l := testkit.Must(listen(t.Context(), filepath.Join(dir, name)))(t)
		defer l.Close()
		list = append(list, l)
	}
	testkit.OK(t, os.Remove(list[1].name))
	testkit.OK(t, os.WriteFile(list[1].name, nil, 0o600))
	atexit.Run()
	left, err := os.ReadDir(dir)
	if err != nil || len(left) != 1 || left[0].Name() != "b" {
		t.Errorf("left: %v, %v", left, err)
	}
}
