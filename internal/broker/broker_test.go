package broker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/internal/gpufd"
	"vnic.dev/vnic/internal/scm"
	"vnic.dev/vnic/internal/testkit"
	"vnic.dev/vnic/internal/wire/gateway"
)

func TestMain(m *testing.M) {
	if Is(os.Args) {
		os.Exit(Main())
	}
	if what := os.Getenv(caller); what != "" {
		if err := measure(what); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		return
	}
	if os.Getenv(starter) != "" {
		if err := start(); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		return
	}
	testkit.Main(m)
}

func both(t testing.TB, c Config) *Client {
	t.Helper()
	a, b, err := scm.MessagePair()
	testkit.OK(t, err)
	done := make(chan struct{})
	go func() {
		defer close(done)
		serve(b, c, slog.New(slog.DiscardHandler))
		_ = b.Close()
	}()
	k := newClient(a)
	t.Cleanup(func() {
		testkit.OK(t, k.Close())
		<-done
	})
	return k
}

func refused(t *testing.T, what string, err error) {
	t.Helper()
	if !errors.Is(err, unix.EPERM) {
		t.Errorf("%s: %v", what, err)
	}
}

// Invariant: sandbox: The broker gives a process nothing that the policy or its start did not name.
func TestBrokerTrustsNobody(t *testing.T) {
	testkit.LeavesNothing(t)
	ctx := t.Context()
	l := testkit.Must(net.Listen("tcp4", "127.0.0.1:0"))(t)
	defer l.Close()
	open := l.Addr().(*net.TCPAddr).AddrPort()
	dir := t.TempDir()
	named, other := filepath.Join(dir, "named"), filepath.Join(dir, "other")
	for _, name := range []string{named, other} {
		testkit.OK(t, os.WriteFile(name, nil, 0o600))
	}
	qemu := testkit.Must(net.ListenUnix("unix", &net.UnixAddr{Net: "unix", Name: dir + "/q"}))(t)
	defer qemu.Close()
	ports := testkit.Must(gateway.ParsePorts(netPort(open)))(t)
	k := both(t, Config{Mode: On, NAT: true, Policy: gateway.Policy{HostPorts: ports}, Connect: []string{dir + "/q"}})
	c := testkit.Must(k.Dial(ctx, "tcp", open))(t)
	if _, ok := c.(*net.TCPConn); !ok {
		t.Errorf("%T", c)
	}
	testkit.OK(t, c.Close())
	u := testkit.Must(k.Connect(ctx, 0))(t)
	testkit.OK(t, u.Close())
	_, err := k.Dial(ctx, "tcp", netip.AddrPortFrom(open.Addr(), open.Port()^1))
	refused(t, "another port", err)
	flow := func(what string, f gateway.Flow, want error) *net.UDPConn {
		c, err := k.OpenFlow(ctx, f)
		testkit.ErrorIs(t, err, want, what)
		return c
	}
	const udp = 17
	flow("metadata", gateway.Flow{Proto: udp, To: netip.MustParseAddrPort("169.254.169.254:80"), TTL: 9}, unix.EPERM)
	flow("another port", gateway.Flow{Proto: udp, To: netip.AddrPortFrom(open.Addr(), open.Port()^1), TTL: 9}, unix.EPERM)
	flow("a port that is not ours", gateway.Flow{Proto: udp, To: open, Local: 53}, unix.EPERM)
	flow("another protocol", gateway.Flow{Proto: 6, To: open}, unix.EINVAL)
	flow("a buffer without end", gateway.Flow{Proto: udp, To: open, Buffer: 1 << 30}, unix.EINVAL)
	flow("nobody", gateway.Flow{Proto: udp}, unix.EINVAL)
	one := flow("a flow", gateway.Flow{Proto: udp, To: open, TTL: 9, DF: true, Buffer: 1 << 15}, nil)
	keeps(t, one, 1<<15)
	local := one.LocalAddr().(*net.UDPAddr).AddrPort().Port()
	hears := flow("its other ports", gateway.Flow{Proto: udp, To: netip.AddrPortFrom(open.Addr(), 0), Local: local}, nil)
	testkit.Equal(t, "local port", hears.LocalAddr().(*net.UDPAddr).AddrPort().Port(), local)
	elsewhere := netip.MustParseAddrPort("192.0.2.1:80")
	flow("its port to another host", gateway.Flow{Proto: udp, To: elsewhere, Local: local}, unix.EPERM)
	testkit.OK(t, errors.Join(one.Close(), hears.Close()))
	_, err = k.OpenAnswer(ctx, gateway.Answer{Listen: open, Sender: open})
	refused(t, "an answer of no forward", err)
	_, err = k.DialResolver(ctx, "tcp", open)
	refused(t, "no resolver", err)
	_, err = k.ListenUDP(open)
	refused(t, "no forward", err)
	_, err = k.Connect(ctx, 1)
	testkit.ErrorIs(t, err, unix.EINVAL)
	remove := testkit.Must(k.Keep(named, false))(t)
	testkit.Must(opSeal.quick(k, none{}))(t)
	_, err = k.Keep(other, false)
	refused(t, "a file after the seal", err)
	_, err = opSeal.quick(k, none{})
	refused(t, "a second seal", err)
	_, err = opRemove.quick(k, 1)
	testkit.ErrorIs(t, err, unix.EINVAL)
	testkit.ErrorIs(t, raw(k, uint32(len(table)), nil), unix.EINVAL)
	for _, junk := range []string{"x", strings.Repeat("x", headerLen-1), strings.Repeat("\xff", 5000)} {
		testkit.Must(k.conn.Write([]byte(junk)))(t)
	}
	testkit.OK(t, remove())
	left := testkit.Must(filepath.Glob(dir + "/*"))(t)
	testkit.Equal(t, "left", strings.Join(left, " "), other+" "+dir+"/q")
}

// keeps checks that the size of a socket's receive buffer was set to n bytes, which the kernel doubles (socket(7)).
func keeps(t *testing.T, c *net.UDPConn, n int) {
	t.Helper()
	got := 0
	raw := testkit.Must(c.SyscallConn())(t)
	testkit.OK(t, raw.Control(func(fd uintptr) {
		got, _ = unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUF)
	}))
	testkit.Equal(t, "SO_RCVBUF", got, 2*n)
}

func netPort(a netip.AddrPort) string { return strings.TrimPrefix(a.String(), a.Addr().String()+":") }

// The broker sends the descriptor of a GPU's memory to a process that connects to a socket that was named, with its
// group and GroupMode, before the seal. After the seal it refuses further memory and sockets.
func TestMemoryIsGivenUntilTheSeal(t *testing.T) {
	testkit.LeavesNothing(t)
	k := both(t, Config{Mode: On})
	dir := t.TempDir()
	path := filepath.Join(dir, "s.gpu")
	l := testkit.Must(net.ListenUnix("unix", &net.UnixAddr{Net: "unix", Name: path}))(t)
	fd := testkit.Must(unix.MemfdCreate("gpu", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING))(t)
	memory := os.NewFile(uintptr(fd), "gpu")
	defer memory.Close()
	testkit.OK(t, memory.Truncate(4096))
	testkit.Must(unix.FcntlInt(memory.Fd(), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK))(t)
	give := func() (err error) {
		return scm.Control(l, func(fd int) error {
			_, err := opGive.quick(k, grant{Path: toText(path)}, fd)
			return err
		})
	}
	testkit.ErrorIs(t, give(), unix.EINVAL)
	if err := k.Give(l, path, memory, os.Getegid()); err == nil {
		t.Error("a socket whose mode lets others in")
	}
	testkit.OK(t, os.Chmod(path, 0o660))
	if err := k.Give(l, path, memory, os.Getegid()+1); err == nil {
		t.Error("a socket of another group")
	}
	if err := k.Give(l, path+"x", memory, os.Getegid()); err == nil {
		t.Error("a socket without a name")
	}
	if _, err := opGive.quick(k, grant{Path: toText(path)}, int(memory.Fd())); err == nil {
		t.Error("no socket")
	}
	testkit.OK(t, k.Give(l, path, memory, os.Getegid()))
	testkit.Must(opSeal.quick(k, none{}))(t)
	refused(t, "after the seal", k.Give(l, path, memory, os.Getegid()))
	refused(t, "a socket after the seal", give())
	l.SetUnlinkOnClose(false)
	testkit.OK(t, l.Close())
	got := testkit.Must(gpufd.Receive(t.Context(), path))(t)
	testkit.OK(t, unix.Close(got))
}

func TestOnlyTheSameFileIsRemoved(t *testing.T) {
	testkit.LeavesNothing(t)
	k := both(t, Config{Mode: On})
	name := filepath.Join(t.TempDir(), "f")
	testkit.OK(t, os.WriteFile(name, nil, 0o600))
	remove := testkit.Must(k.Keep(name, false))(t)
	testkit.OK(t, os.WriteFile(name+"2", nil, 0o600))
	testkit.OK(t, os.Rename(name+"2", name))
	testkit.OK(t, remove())
	if _, err := os.Lstat(name); err != nil {
		t.Error(err)
	}
}

// The broker gives a draft the name that was set before the seal, if the draft is still the same file.
func TestDraftsGetTheirNames(t *testing.T) {
	testkit.LeavesNothing(t)
	k := both(t, Config{Mode: On})
	dir := t.TempDir()
	file := func(name string) string {
		testkit.OK(t, os.WriteFile(filepath.Join(dir, name), []byte(name), 0o600))
		return filepath.Join(dir, name)
	}
	file("x")
	rename, remove, err := k.Draft(nil, file(".x.1"), filepath.Join(dir, "x"))
	testkit.OK(t, err)
	_, discard, err := k.Draft(nil, file(".x.2"), filepath.Join(dir, "x"))
	testkit.OK(t, err)
	stale, _, err := k.Draft(nil, file(".x.3"), filepath.Join(dir, "x"))
	testkit.OK(t, err)
	testkit.Must(k.Keep(file("kept"), false))(t)
	for _, name := range []string{"", ".", "..", "a/b", "../x", "a\x00b"} {
		_, err := opDraft.quick(k, draftFile{toText(dir), toText("kept"), toText(name)})
		testkit.ErrorIs(t, err, unix.EINVAL)
	}
	_, err = opDraft.quick(k, draftFile{Directory: toText(dir), Name: toText("x")})
	testkit.ErrorIs(t, err, unix.EINVAL)
	nameless := testkit.Must(os.OpenFile(dir, os.O_WRONLY|unix.O_TMPFILE, 0o600))(t)
	defer nameless.Close()
	adopt, forget, err := k.Draft(nameless, "", filepath.Join(dir, "new"))
	testkit.OK(t, err)
	testkit.Must(opSeal.quick(k, none{}))(t)
	_, _, err = k.Draft(nil, filepath.Join(dir, "kept"), filepath.Join(dir, "y"))
	refused(t, "a draft after the seal", err)
	_, err = opRename.quick(k, 3)
	refused(t, "a name for what is no draft", err)
	_, err = opRename.quick(k, 5)
	testkit.ErrorIs(t, err, unix.EINVAL)

	testkit.Must(nameless.WriteString("nameless"))(t)
	file("new")
	testkit.OK(t, adopt())
	testkit.OK(t, forget())
	testkit.Equal(t, "new", string(testkit.Must(os.ReadFile(filepath.Join(dir, "new")))(t)), "nameless")

	testkit.OK(t, os.WriteFile(filepath.Join(dir, ".x.1"), []byte("written"), 0o600))
	testkit.OK(t, rename())
	testkit.OK(t, remove())
	testkit.Equal(t, "x", string(testkit.Must(os.ReadFile(filepath.Join(dir, "x")))(t)), "written")
	testkit.OK(t, os.WriteFile(filepath.Join(dir, ".x.2"), []byte("written"), 0o600))
	testkit.OK(t, discard())
	testkit.OK(t, os.Rename(file("other"), filepath.Join(dir, ".x.3")))
	testkit.ErrorIs(t, stale(), unix.ESTALE)
	left := testkit.Must(filepath.Glob(dir + "/*"))(t)
	testkit.Equal(t, "left", strings.Join(left, " "), dir+"/.x.3 "+dir+"/kept "+dir+"/new "+dir+"/x")
}

// The relay of a UDP forward sends only to an address that has sent to the forward. OpenAnswer connects a socket only
// to such an address.
func TestRelayAnswersWhoAsked(t *testing.T) {
	testkit.LeavesNothing(t)
	addr := netip.MustParseAddrPort("127.0.0.1:0")
	k := both(t, Config{Mode: On, Forwards: []gateway.Forward{{Proto: "udp", Listen: addr}}})
	d := testkit.Must(k.ListenUDP(addr))(t)
	defer d.Close()
	asker := testkit.Must(net.Dial("udp4", d.LocalAddr().String()))(t)
	defer asker.Close()
	stranger := testkit.Must(net.ListenPacket("udp4", "127.0.0.1:0"))(t)
	defer stranger.Close()
	testkit.Must(asker.Write([]byte("question")))(t)
	b := make([]byte, 100)
	n, from, err := d.ReadFromUDPAddrPort(b)
	if err != nil || string(b[:n]) != "question" || from != asker.LocalAddr().(*net.UDPAddr).AddrPort() {
		t.Fatalf("%q from %v, %v", b[:n], from, err)
	}
	to := stranger.LocalAddr().(*net.UDPAddr).AddrPort()
	listen := d.LocalAddr().(*net.UDPAddr).AddrPort()
	_, err = k.OpenAnswer(t.Context(), gateway.Answer{Listen: listen, Sender: to})
	refused(t, "a socket to a stranger", err)
	socket := testkit.Must(k.OpenAnswer(t.Context(), gateway.Answer{Listen: listen, Sender: from, Buffer: 1 << 16}))(t)
	testkit.Equal(t, "its address", socket.LocalAddr().(*net.UDPAddr).AddrPort().Addr(), listen.Addr())
	testkit.Equal(t, "its peer", socket.RemoteAddr().(*net.UDPAddr).AddrPort(), from)
	keeps(t, socket, 1<<16)
	testkit.OK(t, socket.Close())
	testkit.Must(d.WriteToUDPAddrPort([]byte("attack"), to))(t)
	testkit.Must(d.WriteToUDPAddrPort([]byte("answer"), from))(t) // after the attack
	testkit.OK(t, asker.SetReadDeadline(time.Now().Add(testkit.Patience)))
	n, err = asker.Read(b)
	testkit.OK(t, err)
	testkit.Equal(t, "answer", string(b[:n]), "answer")
	other := testkit.Must(net.Dial("udp4", to.String()))(t)
	defer other.Close()
	testkit.Must(other.Write([]byte("friend")))(t)
	testkit.OK(t, stranger.SetReadDeadline(time.Now().Add(testkit.Patience)))
	n, _, err = stranger.ReadFrom(b)
	testkit.OK(t, err)
	testkit.Equal(t, "the first that the stranger got", string(b[:n]), "friend")
}

func TestRelayTellsWhatIsLost(t *testing.T) {
	testkit.LeavesNothing(t)
	addr := netip.MustParseAddrPort("127.0.0.1:0")
	k := both(t, Config{Mode: On, Forwards: []gateway.Forward{{Proto: "udp", Listen: addr}}})
	d := testkit.Must(k.ListenUDP(addr))(t)
	defer d.Close()
	c := testkit.Must(net.Dial("udp4", d.LocalAddr().String()))(t)
	defer c.Close()
	const n = 2000
	for range n {
		testkit.Must(c.Write(make([]byte, 60_000)))(t)
	}
	var came atomic.Uint64
	go func() {
		for b := make([]byte, 64<<10); ; came.Add(1) {
			if _, _, err := d.ReadFromUDPAddrPort(b); err != nil {
				return
			}
		}
	}()
	testkit.Eventually(t, "each datagram has come, or is lost", func() bool { return came.Load()+d.Lost() == n })
	testkit.Equal(t, "some are lost", d.Lost() > 0, true)
}

// Calls whose context has ended leave no descriptor, and a call to a broker that has ended returns an error.
func TestNobodyWaitsForABroker(t *testing.T) {
	testkit.LeavesNothing(t)
	k := both(t, Config{Mode: On, NAT: true, Policy: gateway.Policy{HostPorts: gateway.AllPorts}})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for range 100 {
		c, err := k.Dial(ctx, "tcp", netip.MustParseAddrPort("127.0.0.1:9"))
		if err == nil {
			t.Error("a connection", c.Close())
		}
	}
	a, b, err := scm.MessagePair()
	testkit.OK(t, errors.Join(err, b.Close()))
	gone := newClient(a)
	<-gone.ended
	if _, err := gone.Addrs(); err == nil {
		t.Error("addresses of nobody")
	}
	testkit.OK(t, gone.Close())
}

func TestStart(t *testing.T) {
	testkit.LeavesNothing(t)
	l := testkit.Must(net.Listen("tcp4", "127.0.0.1:0"))(t)
	defer l.Close()
	open := l.Addr().(*net.TCPAddr).AddrPort()
	ports := testkit.Must(gateway.ParsePorts(netPort(open)))(t)
	k := testkit.Must(Start(Config{Mode: On, NAT: true, Policy: gateway.Policy{HostPorts: ports}}))(t)
	c := testkit.Must(k.Dial(t.Context(), "tcp", open))(t)
	testkit.OK(t, c.Close())
	_, err := k.Dial(t.Context(), "tcp", netip.AddrPortFrom(open.Addr(), open.Port()^1))
	refused(t, "another port", err)
	want := testkit.Must(gateway.NewDialer(gateway.Options{}).Addrs())(t)
	got := testkit.Must(k.Addrs())(t)
	testkit.Equal(t, "addresses", len(got), len(want))
	testkit.OK(t, k.Close())
}
