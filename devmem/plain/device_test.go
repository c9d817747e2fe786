package plain

import (
	"context"
	"errors"
	"io"
	"maps"
	"net"
	"net/netip"
	"os"
	"syscall"
	"testing"
	"time"

	"vnic.dev/vnic/devmem"
	"vnic.dev/vnic/internal/devmembase"
	"vnic.dev/vnic/internal/devmemtest"
	"vnic.dev/vnic/internal/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

type peerHost struct{ addr netip.Addr }

func (h peerHost) Addr() netip.Addr { return h.addr }

func (h peerHost) Listen(a netip.AddrPort) (net.Listener, error) {
	return net.ListenTCP("tcp", net.TCPAddrFromAddrPort(a))
}

func (h peerHost) Dial(ctx context.Context, l, r netip.AddrPort) (net.Conn, error) {
	d := net.Dialer{}
	if l.IsValid() {
		d.LocalAddr = net.TCPAddrFromAddrPort(l)
	}
	return d.DialContext(ctx, "tcp", r.String())
}

func newDevice(t *testing.T) (*Device, *GPU) {
	t.Helper()
	testkit.LeavesNothing(t)
	g := testkit.Must(NewGPU(4 << 20))(t)
	d := testkit.Must(New(Options{GPUs: []*GPU{g}}))(t)
	t.Cleanup(func() {
		testkit.OK(t, d.Close())
		testkit.OK(t, g.Close())
	})
	return d, g
}

// Invariant: devmem/plain: Ordinary sockets have the semantics that package devmemtest checks.
func TestConformance(t *testing.T) {
	for _, c := range devmemtest.Cases() {
		t.Run(c.Name, func(t *testing.T) {
			d, g := newDevice(t)
			x, y := testkit.Loopback()
			c.Run(t, &devmemtest.World{Dev: d, Addr: x, Queues: []int{1, 2}, Memory: devmemtest.Bytes(g.Bytes()),
				Host: peerHost{y}, Strict: true, Pages: true})
		})
	}
}

// pair returns a receive binding, and both ends of a connection: the device's, which a rule steers to the binding, and
// an ordinary socket.
func pair(t *testing.T, d *Device) (devmem.Binding, devmem.Conn, net.Conn) {
	t.Helper()
	b := testkit.Must(d.BindRX(testkit.Must(d.Register(0, 0, 256<<10))(t), 1))(t)
	x, _ := testkit.Loopback()
	l := testkit.Must(d.Listen(netip.AddrPortFrom(x, 0)))(t)
	addr := devmembase.AddrPort(l.Addr())
	testkit.Must(d.AddFlow(devmem.Flow{Dst: addr, Queue: 1}))(t)
	peer := testkit.Must(net.Dial("tcp", addr.String()))(t)
	t.Cleanup(func() { _ = peer.Close() })
	c := testkit.Must(l.AcceptConn())(t)
	testkit.OK(t, l.Close())
	testkit.OK(t, c.SetDeadline(time.Now().Add(time.Minute)))
	return b, c, peer
}

// A connection without a binding, whose user does not receive, queues at least maxQueued and at most
// maxQueued+linearMax bytes, and reads the rest when the user receives.
func TestQueueIsBounded(t *testing.T) {
	d, _ := newDevice(t)
	x, _ := testkit.Loopback()
	l := testkit.Must(d.Listen(netip.AddrPortFrom(x, 0)))(t)
	peer := testkit.Must(net.Dial("tcp", l.Addr().String()))(t)
	defer func() { _ = peer.Close() }()
	c := testkit.Must(l.AcceptConn())(t)
	sent := make(chan int, 1)
	go func() {
		n := 0
		for b := make([]byte, 64<<10); ; {
			k, err := peer.Write(b)
			if n += k; err != nil {
				sent <- n
				return
			}
		}
	}()
	for full := false; !full; {
		c.(*conn).mu.Lock()
		full = c.(*conn).room != nil
		c.(*conn).mu.Unlock()
	}
	if n := c.(*conn).bytes; n < maxQueued || n > maxQueued+linearMax {
		t.Errorf("%d bytes are queued", n)
	}
	testkit.OK(t, peer.(*net.TCPConn).SetWriteDeadline(time.Now()))
	want := <-sent
	testkit.OK(t, peer.(*net.TCPConn).CloseWrite())
	got := testkit.Must(io.Copy(io.Discard, c))(t)
	testkit.Equal(t, "bytes", int(got), want)
}

// A connection whose binding has no free page stalls, and continues when its user returns tokens.
func TestWaitsForPages(t *testing.T) {
	d, _ := newDevice(t)
	_, c, peer := pair(t, d)
	wrote := make(chan error, 1)
	go func() {
		_, err := peer.Write(make([]byte, 600<<10))
		wrote <- err
	}()
	frags, room := make([]devmem.Frag, 256), make([]byte, 1<<20)
	got := 0
	var tokens devmem.Tokens
	for d.drops.Load() == 0 {
		n, nf, _, err := c.RecvDevmem(frags, room, devmem.DontWait)
		if err == nil {
			got += n
			for _, f := range frags[:nf] {
				tokens.Add(f.Token)
			}
		}
	}
	c.SetStallLimit(50 * time.Millisecond)
	for {
		n, nf, _, err := c.RecvDevmem(frags, room, 0)
		if err != nil {
			testkit.ErrorSays(t, err, "no progress for 50ms", "tokens held")
			break
		}
		got += n
		for _, f := range frags[:nf] {
			tokens.Add(f.Token)
		}
	}
	if got >= 600<<10 {
		t.Fatalf("%d bytes came to 256 KiB of pages", got)
	}
	c.SetStallLimit(0)
	testkit.OK(t, tokens.GiveBack(c))
	for got < 600<<10 {
		n, nf, _, err := c.RecvDevmem(frags, room, 0)
		testkit.OK(t, err)
		got += n
		for _, f := range frags[:nf] {
			tokens.Add(f.Token)
		}
		testkit.OK(t, tokens.GiveBack(c))
	}
	testkit.OK(t, <-wrote)
}

// A read deadline that has passed can be moved. RecvDevmem returns an error after a new deadline and the peer's close.
func TestDeadlineMoves(t *testing.T) {
	d, _ := newDevice(t)
	_, c, peer := pair(t, d)
	testkit.OK(t, c.SetReadDeadline(time.Now().Add(-time.Second)))
	_, err := c.Read(make([]byte, 1))
	testkit.ErrorIs(t, err, os.ErrDeadlineExceeded)
	testkit.OK(t, c.SetReadDeadline(time.Now().Add(time.Minute)))
	testkit.Must(peer.Write([]byte("x")))(t)
	frags := make([]devmem.Frag, 1)
	n, _, _, err := c.RecvDevmem(frags, make([]byte, 1), 0)
	if n != 1 || err != nil {
		t.Errorf("%d, %v", n, err)
	}
	done := make(chan error, 1)
	go func() {
		_, _, _, err := c.RecvDevmem(frags, make([]byte, 1), 0)
		done <- err
	}()
	testkit.OK(t, c.SetReadDeadline(time.Now()))
	testkit.OK(t, peer.Close()) // the deadline or the close ends the call, whichever it sees first
	if err := <-done; err == nil {
		t.Error("received")
	}
}

func TestOptionsAreChecked(t *testing.T) {
	for _, n := range []int{-1, 1, 257} {
		testkit.ErrorSays(t, testkit.Err(New(Options{Queues: n})), "2 to 256")
	}
	for _, n := range []uint64{0, 4095, 1 << 47} {
		testkit.ErrorSays(t, testkit.Err(NewGPU(n)), "not whole pages")
	}
}

// After SendDevmem has returned a stall error, the connection can still be used.
func TestSendStalls(t *testing.T) {
	d, gpu := newDevice(t)
	_, c, peer := pair(t, d)
	b := testkit.Must(d.Register(0, 0, uint64(len(gpu.Bytes()))))(t)
	tx := testkit.Must(d.BindTX(b))(t)
	c.SetStallLimit(100 * time.Millisecond)
	sent, stall := 0, (*devmem.StallError)(nil)
	for {
		n, err := c.SendDevmem(tx.ID(), []devmem.Range{{Len: b.Size()}})
		sent += n
		if err != nil {
			if !errors.As(err, &stall) || stall.Op != "send" {
				t.Fatal(err)
			}
			break
		}
	}
	c.SetStallLimit(0)
	got := make(chan error, 1)
	go func() {
		_, err := io.CopyN(io.Discard, peer, int64(sent)+1)
		got <- err
	}()
	testkit.Must(c.Write([]byte("x")))(t)
	testkit.OK(t, <-got)
	testkit.OK(t, tx.Close())
}

// A connection that has sent, and received nothing, waits for its peer: bytes that the peer acknowledged have not come.
func TestStallBehindASendIsThePeers(t *testing.T) {
	d, _ := newDevice(t)
	rx, c, peer := pair(t, d)
	for id := range maps.Clone(d.rules) {
		testkit.OK(t, d.DelFlow(id))
	}
	tx := testkit.Must(d.BindTX(testkit.Must(d.Register(0, 1<<20, 4096))(t)))(t)
	testkit.Must(c.SendDevmem(tx.ID(), []devmem.Range{{Len: 4096}}))(t)
	testkit.Must(io.CopyN(io.Discard, peer, 4096))(t)
	_, _, err := c.ReadCompletion(time.Time{})
	testkit.OK(t, err)
	c.SetStallLimit(50 * time.Millisecond)
	_, _, _, err = c.RecvDevmem(make([]devmem.Frag, 1), make([]byte, 1), 0)
	testkit.ErrorSays(t, err, "nothing came from peer")
	testkit.OK(t, errors.Join(tx.Close(), rx.Close()))
}

// A reset is an error to who receives, also if ReadCompletion has looked at the socket before: the stream was cut.
func TestResetIsNoEndOfAStream(t *testing.T) {
	d, gpu := newDevice(t)
	_, c, peer := pair(t, d)
	for id := range maps.Clone(d.rules) {
		testkit.OK(t, d.DelFlow(id))
	}
	wrote := make(chan error, 1)
	go func() {
		_, err := peer.Write(make([]byte, 64<<20)) // more than c's queue and the sockets hold
		wrote <- err
	}()
	tx := testkit.Must(d.BindTX(testkit.Must(d.Register(0, 1<<20, uint64(len(gpu.Bytes()))-1<<20))(t)))(t)
	c.SetStallLimit(100 * time.Millisecond)
	for stall := (*devmem.StallError)(nil); stall == nil; {
		if _, err := c.SendDevmem(tx.ID(), []devmem.Range{{Len: 1 << 20}}); err != nil && !errors.As(err, &stall) {
			t.Fatal(err)
		}
	}
	testkit.OK(t, errors.Join(peer.(*net.TCPConn).SetLinger(0), peer.Close()))
	if err := <-wrote; err == nil {
		t.Fatal("all was written")
	}
	for err := error(nil); err == nil; {
		_, _, err = c.ReadCompletion(time.Time{})
	}
	_, err := io.Copy(io.Discard, c)
	testkit.ErrorIs(t, err, syscall.ECONNRESET)
	testkit.OK(t, tx.Close())
}

// If the peer resets the connection after its FIN, ReadCompletion first reports the send, and then returns an error.
func TestResetBehindFIN(t *testing.T) {
	d, _ := newDevice(t)
	_, c, peer := pair(t, d)
	testkit.OK(t, peer.Close())
	testkit.ErrorIs(t, testkit.Err(c.Read(make([]byte, 1))), io.EOF)
	b := testkit.Must(d.Register(0, 0, devmem.PageSize))(t)
	tx := testkit.Must(d.BindTX(b))(t)
	testkit.Must(c.SendDevmem(tx.ID(), []devmem.Range{{Len: 100}}))(t)
	_, hi, err := c.ReadCompletion(time.Time{})
	if hi != 0 || err != nil {
		t.Errorf("%d, %v: a send of a connection that has failed is complete", hi, err)
	}
	_, _, err = c.ReadCompletion(time.Time{})
	if !errors.Is(err, syscall.ECONNRESET) && !errors.Is(err, syscall.EPIPE) {
		t.Error(err)
	}
	testkit.OK(t, tx.Close())
}
