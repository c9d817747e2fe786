package kernel

import (
	"context"
	"errors"
	"flag"
	"io"
	"net"
	"net/netip"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/devmem"
	"vnic.dev/vnic/internal/devmemtest"
	"vnic.dev/vnic/internal/testkit"
)

func TestMain(m *testing.M) {
	// The example does not run here, as it needs a NIC with devmem TCP: TestProgramRunsInAGuest of internal/job/boot runs
	// it.
	flag.Parse()
	if err := flag.Set("test.skip", strings.Trim(flag.Lookup("test.skip").Value.String()+"|^Example", "|")); err != nil {
		panic(err)
	}
	testkit.Main(m)
}

func loopback(t testing.TB) *net.Interface {
	t.Helper()
	ifs := testkit.Must(net.Interfaces())(t)
	for _, i := range ifs {
		if i.Flags&net.FlagLoopback != 0 {
			return &i
		}
	}
	t.Fatal("no loopback interface")
	return nil
}

var errNever = errors.New("never")

var localhost = netip.MustParseAddr("127.0.0.1")

type host struct{ addr netip.Addr }

func (h host) Addr() netip.Addr { return h.addr }

func (h host) Listen(a netip.AddrPort) (net.Listener, error) {
	return net.ListenTCP("tcp", net.TCPAddrFromAddrPort(a))
}

func (h host) Dial(ctx context.Context, local, remote netip.AddrPort) (net.Conn, error) {
	return (&net.Dialer{}).DialContext(ctx, "tcp", remote.String())
}

// onLoopback reports whether a test case can run on the loopback interface, where no data arrives in device
// memory.
func onLoopback(name string) bool {
	for _, part := range []string{
		"bind/", "send/", "receive/payload that is not steered", "tokens/DontNeed wants 1 to 128",
		"close/data that is not acknowledged",
		"close/Close ends calls that wait",
	} {
		if strings.HasPrefix(name, part) {
			return true
		}
	}
	return false
}

// Invariant: devmem/kernel: Linux's own sockets pass the same suite, over IPv4, IPv6 and loopback.
func TestConformanceOverLoopback(t *testing.T) {
	for _, c := range devmemtest.Cases() {
		if !onLoopback(c.Name) {
			continue
		}
		t.Run(c.Name, func(t *testing.T) {
			td := newTestDevice(t)
			c.Run(t, &devmemtest.World{
				Dev: td, Addr: localhost, Queues: []int{1, 2}, Memory: devmemtest.Bytes(td.mem), Host: host{localhost},
				Strict: true,
			})
		})
	}
}

func listen(t testing.TB, d devmem.Device, addr netip.Addr) (devmem.Listener, netip.AddrPort) {
	t.Helper()
	l := testkit.Must(d.Listen(netip.AddrPortFrom(addr, 0)))(t)
	t.Cleanup(func() { l.Close() })
	return l, l.Addr().(*net.TCPAddr).AddrPort()
}

// pair returns the device's and the host's end of a connection.
func pair(t testing.TB, d devmem.Device) (*Conn, *net.TCPConn) {
	t.Helper()
	l, addr := listen(t, d, localhost)
	h := testkit.Must(net.DialTCP("tcp", nil, net.TCPAddrFromAddrPort(addr)))(t)
	t.Cleanup(func() { h.Close() })
	c := testkit.Must(l.AcceptConn())(t)
	t.Cleanup(func() { c.Close() })
	return c.(*Conn), h
}

func errOf(results ...any) error {
	err, _ := results[len(results)-1].(error)
	return err
}

func wantErr(t testing.TB, what string, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("%s: %v, want %v", what, err, want)
	}
}

func TestDialAndListen(t *testing.T) {
	for _, addr := range []string{"127.0.0.1", "::1", "0.0.0.0", "::"} {
		t.Run(addr, func(t *testing.T) {
			td := newTestDevice(t)
			addr, from := netip.MustParseAddr(addr), netip.AddrPort{}
			l, on := listen(t, td, addr)
			if addr.IsUnspecified() {
				addr = map[bool]netip.Addr{true: localhost, false: netip.IPv6Loopback()}[addr.Is4()]
				from = netip.AddrPortFrom(addr, 0)
			}
			c := testkit.Must(td.Dial(t.Context(), from, netip.AddrPortFrom(addr, on.Port())))(t)
			defer c.Close()
			p, err := l.AcceptConn()
			testkit.OK(t, err)
			defer p.Close()
			if c.LocalAddr().String() != p.RemoteAddr().String() || p.LocalAddr().String() != c.RemoteAddr().String() {
				t.Errorf("%v->%v meets %v->%v", c.LocalAddr(), c.RemoteAddr(), p.LocalAddr(), p.RemoteAddr())
			}
			testkit.OK(t, errOf(c.Write([]byte("hello"))))
			b := make([]byte, 5)
			if _, err := io.ReadFull(p, b); err != nil || string(b) != "hello" {
				t.Errorf("%q, %v", b, err)
			}
			if st := td.Stats(); st.RxLinearBytes != 5 || st.TxLinearBytes != 5 || st.RxSegments == 0 || st.TxSegments == 0 {
				t.Errorf("%+v", st)
			}
		})
	}
}

func TestDialErrors(t *testing.T) {
	td := newTestDevice(t)
	l, addr := listen(t, td, localhost)
	wantErr(t, "listen twice", errOf(td.Listen(addr)), syscall.EADDRINUSE)
	l.Close()
	wantErr(t, "nobody listens", errOf(td.Dial(t.Context(), netip.AddrPort{}, addr)), syscall.ECONNREFUSED)
	wantErr(t, "two families", errOf(td.Dial(t.Context(), netip.AddrPortFrom(netip.IPv6Loopback(), 0), addr)),
		syscall.EINVAL)
	wantErr(t, "nowhere", errOf(td.Dial(t.Context(), netip.AddrPort{}, netip.AddrPort{})), syscall.EINVAL)
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errNever)
	wantErr(t, "cancelled", errOf(td.Dial(ctx, netip.AddrPort{}, addr)), errNever)
	wantErr(t, "accept of a closed listener", errOf(l.AcceptConn()), net.ErrClosed)
}

func TestDialEndsWithItsContext(t *testing.T) {
	td := newTestDevice(t)
	// A listener with a full backlog drops SYNs.
	fd := testkit.Must(unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0))(t)
	defer unix.Close(fd)
	testkit.OK(t, errors.Join(unix.Bind(fd, &unix.SockaddrInet4{Addr: localhost.As4()}), unix.Listen(fd, 0)))
	name, err := unix.Getsockname(fd)
	testkit.OK(t, err)
	addr := netip.AddrPortFrom(localhost, uint16(name.(*unix.SockaddrInet4).Port))
	for range 3 {
		ctx, cancel := context.WithCancelCause(t.Context())
		defer cancel(nil)
		ended := make(chan error)
		go func() {
			c, err := td.Dial(ctx, netip.AddrPort{}, addr)
			if err == nil {
				c.Close()
			}
			ended <- err
		}()
		select {
		case err := <-ended:
			testkit.OK(t, err)
		case <-time.After(100 * time.Millisecond):
			cancel(errNever)
			if err := <-ended; err != nil { // a nil error means that the peer had room
				wantErr(t, "dial", err, errNever)
				return
			}
		}
	}
	t.Error("the backlog never was full")
}

func TestAcceptEndsWithTheListener(t *testing.T) {
	td := newTestDevice(t)
	l, _ := listen(t, td, localhost)
	got := make(chan error)
	go func() {
		got <- errOf(l.Accept())
	}()
	l.Close()
	wantErr(t, "accept", <-got, net.ErrClosed)
	wantErr(t, "second close", l.Close(), net.ErrClosed)
}

func TestReceiveOrdinaryData(t *testing.T) {
	td := newTestDevice(t)
	c, h := pair(t, td)
	if n, err := c.Read(nil); n != 0 || err != nil {
		t.Errorf("nothing wanted: %d, %v", n, err)
	}
	frags, linear := make([]devmem.Frag, 4), make([]byte, 8)
	wantErr(t, "nothing there", errOf(c.RecvDevmem(frags, linear, devmem.DontWait)), syscall.EAGAIN)
	c.SetReadDeadline(time.Now().Add(time.Millisecond))
	wantErr(t, "deadline", errOf(c.RecvDevmem(frags, linear, 0)), os.ErrDeadlineExceeded)
	c.SetReadDeadline(time.Now().Add(-time.Second))
	wantErr(t, "deadline in the past", errOf(c.Read(linear)), os.ErrDeadlineExceeded)
	c.SetDeadline(time.Time{})

	h.Write([]byte("0123456789abcdef"))
	for _, s := range []struct {
		flags   devmem.RecvFlags
		n, nlin int
		want    string
	}{
		{devmem.Peek, 8, 8, "01234567"}, {devmem.Peek | devmem.Trunc, 8, 0, ""}, {0, 8, 8, "01234567"},
		{devmem.Trunc, 8, 0, ""},
	} {
		n, nf, nl, err := c.RecvDevmem(frags, linear, s.flags)
		if n != s.n || nf != 0 || nl != s.nlin || string(linear[:nl]) != s.want || err != nil {
			t.Errorf("flags %d: %d, %d, %d, %v: %q", s.flags, n, nf, nl, err, linear[:nl])
		}
	}
	h.CloseWrite()
	for range 2 {
		testkit.Equal(t, "end", errOf(c.RecvDevmem(frags, linear, 0)), io.EOF)
	}
	testkit.Equal(t, "end", errOf(c.Read(linear)), io.EOF)
	if n, err := c.DontNeed([]devmem.TokenRange{{Start: 1, Count: 7}}); n != 0 || err != nil {
		// A kernel without devmem TCP has no option SO_DEVMEM_DONTNEED.
		if !errors.Is(err, syscall.ENOPROTOOPT) {
			t.Errorf("unknown tokens: %d, %v", n, err)
		}
	}
}

func TestResetIsToldToEveryCall(t *testing.T) {
	td := newTestDevice(t)
	tx := bindTX(t, td)
	c, h := pair(t, td)
	testkit.OK(t, errOf(c.SendDevmem(tx.ID(), []devmem.Range{{Off: 0, Len: 1000}})))
	h.SetLinger(0)
	h.Close()
	if lo, hi, err := c.ReadCompletion(time.Time{}); lo != 0 || hi != 0 || err != nil {
		t.Errorf("completion [%d, %d], %v", lo, hi, err)
	}
	for range 2 {
		wantErr(t, "completion", errOf(c.ReadCompletion(time.Time{})), syscall.ECONNRESET)
		wantErr(t, "read", errOf(c.Read(make([]byte, 1))), syscall.ECONNRESET)
		wantErr(t, "send", errOf(c.SendDevmem(tx.ID(), []devmem.Range{{Off: 0, Len: 1}})), syscall.EPIPE)
		wantErr(t, "write", errOf(c.Write([]byte{1})), syscall.EPIPE)
	}
}

func TestStallLimit(t *testing.T) {
	td := newTestDevice(t)
	c, h := pair(t, td)
	c.SetStallLimit(20 * time.Millisecond)
	var stall *devmem.StallError
	_, err := c.Read(make([]byte, 1))
	if !errors.As(err, &stall) || stall.Op != "read" || !strings.HasPrefix(stall.State, "ESTABLISHED 127.0.0.1") {
		t.Errorf("read: %v", err)
	}
	for err = nil; err == nil; { // the peer does not read
		_, err = c.Write(make([]byte, 1<<20))
	}
	if !errors.As(err, &stall) || stall.Op != "write" {
		t.Errorf("write: %v", err)
	}
	c.SetStallLimit(0)
	h.Write([]byte{1})
	if n, err := c.Read(make([]byte, 1)); n != 1 || err != nil {
		t.Errorf("%d, %v", n, err)
	}
	c.Close()
	if s := c.State(); !strings.HasPrefix(s, "closed ") {
		t.Errorf("%q", s)
	}
}

func TestCloseWriteAndLinger(t *testing.T) {
	td := newTestDevice(t)
	c, h := pair(t, td)
	c.Write([]byte("bye"))
	testkit.OK(t, c.CloseWrite())
	if b, err := io.ReadAll(h); string(b) != "bye" || err != nil {
		t.Errorf("%q, %v", b, err)
	}
	wantErr(t, "write", errOf(c.Write([]byte("more"))), syscall.EPIPE)
	h.Write([]byte("still here"))
	b := make([]byte, 10)
	if _, err := io.ReadFull(c, b); err != nil || string(b) != "still here" {
		t.Errorf("%q, %v", b, err)
	}
	wantErr(t, "SetLinger", c.SetLinger(0), nil)
	wantErr(t, "Close", c.Close(), nil)
	var err error
	for err == nil {
		_, err = h.Write([]byte("x"))
	}
	if _, rerr := h.Read(b); !errors.Is(err, syscall.ECONNRESET) && !errors.Is(err, syscall.EPIPE) {
		t.Errorf("after a close with linger 0 the peer's write: %v, read: %v", err, rerr)
	}
	for _, err := range []error{c.Close(), c.CloseWrite(), c.SetLinger(1), c.SetDeadline(time.Time{})} {
		wantErr(t, "after Close", err, net.ErrClosed)
	}
	wantErr(t, "completion after Close", errOf(c.ReadCompletion(time.Time{})), net.ErrClosed)
}

func TestDeviceCloseEndsCalls(t *testing.T) {
	td := newTestDevice(t)
	c, _ := pair(t, td)
	l, _ := listen(t, td, localhost)
	errs := make(chan error)
	go func() { errs <- errOf(c.Read(make([]byte, 1))) }()
	go func() { errs <- errOf(c.ReadCompletion(time.Time{})) }()
	go func() { errs <- errOf(l.Accept()) }()
	testkit.OK(t, td.Close())
	for range 3 {
		wantErr(t, "call", <-errs, net.ErrClosed)
	}
	wantErr(t, "listen", errOf(td.Listen(netip.AddrPortFrom(localhost, 0))), net.ErrClosed)
	wantErr(t, "dial", errOf(td.Dial(t.Context(), netip.AddrPort{}, netip.AddrPortFrom(localhost, 1))), net.ErrClosed)
	wantErr(t, "register", errOf(td.Register(0, 0, 4096)), net.ErrClosed)
	wantErr(t, "rss", td.SetRSS(1), net.ErrClosed)
	wantErr(t, "bind", errOf(td.BindRX(nil, 1)), net.ErrClosed)
	wantErr(t, "add a rule", errOf(td.AddFlow(flowTo(1))), net.ErrClosed)
	wantErr(t, "delete a rule", td.DelFlow(1), net.ErrClosed)
	testkit.Equal(t, "queues", td.Queues(), 0)
	td.Stats()
}

func bindTX(t *testing.T, td *testDevice) devmem.Binding {
	t.Helper()
	tx := testkit.Must(td.BindTX(td.buffer(t, 0, memSize)))(t)
	return tx
}

// Four ranges may be ten pieces: a segment that the loopback interface could hold is sent as two.
func TestWholePagesOfRangesArePieces(t *testing.T) {
	td := newTestDevice(t)
	tx := bindTX(t, td)
	c, h := pair(t, td)
	go io.Copy(io.Discard, h)
	small := devmem.Range{Off: devmem.PageSize - 1, Len: 2}
	large := devmem.Range{Off: devmem.PageSize - 1, Len: devmem.PageSize + 2}
	n := testkit.Must(c.SendDevmem(tx.ID(), []devmem.Range{small, large, large, small}))(t)
	testkit.Equal(t, "bytes", n, 2*(2+devmem.PageSize+2))
	c.sends.mu.Lock()
	defer c.sends.mu.Unlock()
	testkit.Equal(t, "sendmsgs", int(c.sends.base)+len(c.sends.recs), 2)
}

// SendDevmem itself reads completions when the socket's memory for them is full.
func TestSendsWithoutReadingCompletions(t *testing.T) {
	td := newTestDevice(t)
	tx := bindTX(t, td)
	c, h := pair(t, td)
	const sends = 3000
	go io.Copy(io.Discard, h)
	for i := range sends {
		if n, err := c.SendDevmem(tx.ID(), []devmem.Range{{Off: uint64(i), Len: 1}}); n != 1 || err != nil {
			t.Fatalf("send %d: %d, %v", i, n, err)
		}
	}
	for next := uint32(0); next < sends; {
		lo, hi, err := c.ReadCompletion(time.Time{})
		if lo != next || hi < lo || err != nil {
			t.Fatalf("completion [%d, %d], %v: next is %d", lo, hi, err, next)
		}
		next = hi + 1
	}
	if st := td.Stats(); st.TxDevmemBytes != sends || st.Bindings[0].Sends != 0 {
		t.Errorf("%+v", st)
	}
}
