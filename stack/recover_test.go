package stack_test

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	"vnic.dev/vnic/devmem"
	"vnic.dev/vnic/internal/stacktest"
	"vnic.dev/vnic/internal/testkit"
	"vnic.dev/vnic/splitter"
	"vnic.dev/vnic/stack"
)

func (w *rig) stream(ca, cb devmem.Conn, tx devmem.Binding, size, total, hold int) error {
	s, r := newSender(ca, tx, w.na.Memory()[:size], 2, total), newReceiver(cb, w.nb.Memory()[:size], 2, total, hold)
	return all([]devmem.Conn{ca, cb}, s.run, r.run)
}

func rack(o *stack.Options) { o.RACK = true }

// The pool has few pages, and between its reads the application keeps tokens for at most a quarter of them.
//
// Invariant: stack: A pool that runs dry recovers, and the segment that is missing always finds a
// page.
func TestRecoversFromAnEmptyPool(t *testing.T) {
	t.Parallel()
	for _, wide := range []bool{true, false} {
		for _, pages := range []uint64{72, 100, 300} {
			t.Run(fmt.Sprintf("%d pages, wide=%v", pages, wide), func(t *testing.T) {
				t.Parallel()
				w := newRig(t, stacktest.Options{Cut: true, Seed: pages}, func(o *stack.Options) { o.WideWindow = wide })
				bindRX(t, w.b, 0, pages*4096, 7, 1)
				tx := bindTX(t, w.a, 0, 1<<20)
				ca, cb := w.connect(7, false)
				const total = 3 << 18
				s := newSender(ca, tx, w.na.Memory()[:1<<20], 1, total)
				r := newReceiver(cb, w.nb.Memory(), 1, total, int(pages)/4)
				short := make(chan struct{})
				var g errgroup.Group
				g.Go(func() error {
					return all([]devmem.Conn{ca, cb}, s.run, func() error {
						<-short
						return r.run()
					})
				})
				if wide && pages < 300 { // the receiver starts to read when a frame found too few pages
					testkit.Eventually(t, "something is dropped or refused", func() bool {
						return w.nb.Drops()+w.b.Stats().RxRefused > 0
					})
				}
				close(short)
				testkit.OK(t, g.Wait())
				balanced(t, w.b)
				testkit.Equal(t, "drops of the NIC, in stats", w.b.Stats().NICDrops, w.nb.Drops())
				t.Logf("%d dropped, %d refused", w.nb.Drops(), w.b.Stats().RxRefused)
			})
		}
	}
}

// The first segment of a transfer is lost at least twice, and until B's stack has refused a later one because the pool
// is low or dry.
//
// Invariant: stack: A pool that runs dry recovers, and the segment that is missing always finds a
// page.
func TestTheMissingSegmentAlwaysFindsABuffer(t *testing.T) {
	t.Parallel()
	const pages = 72 // gpumem's pool.go reserves 36; if fewer than 4 are left, only the missing segment is accepted
	for name, v := range map[string]struct{ held, total int }{"low": {33, 30_000}, "dry": {58, 6_000}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newRig(t, stacktest.Options{Cut: true, RingSize: pages}, rack)
			bindRX(t, w.b, 0, pages*4096, 7, 1)
			tx := bindTX(t, w.a, 0, 1<<20)
			ca, cb := w.connect(7, false)
			var tokens []devmem.TokenRange
			for range v.held { // each byte is a segment and gets a page
				send(t, ca, tx, 0, 1)
				completed(t, ca)
				tokens = append(tokens, devmem.TokenRange{Start: frag(t, cb, 1).Token, Count: 1})
			}
			var mu sync.Mutex
			var first uint32
			seen, lost := false, 0
			w.na.Filter(func(h *splitter.Headers, payload int) bool {
				if payload == 0 || h.Class != splitter.TCP {
					return true
				}
				refused := w.b.Stats().RxRefused
				mu.Lock()
				defer mu.Unlock()
				if !seen {
					seen, first = true, h.Seq
				}
				if h.Seq == first && (lost < 2 || refused == 0) {
					lost++
					return false
				}
				return true
			})
			s, r := newSender(ca, tx, w.na.Memory()[:1<<20], 3, v.total), newReceiver(cb, w.nb.Memory(), 3, v.total, 0)
			s.first = uint32(v.held)
			testkit.OK(t, all([]devmem.Conn{ca, cb}, s.run, r.run))
			mu.Lock()
			if lost < 2 {
				t.Errorf("the first segment was lost %d times", lost)
			}
			mu.Unlock()
			if n, err := cb.DontNeed(tokens); n != v.held || err != nil {
				t.Error(n, err)
			}
			balanced(t, w.b)
		})
	}
}

// Invariant: stack: A byte is sent from where the application said, until it is acknowledged and
// the device is done.
func TestCompletionNeedsAckAndDevice(t *testing.T) {
	t.Parallel()
	for _, v := range []string{"device", "ack"} {
		t.Run(v, func(t *testing.T) {
			t.Parallel()
			w := newRig(t, stacktest.Options{})
			tx := bindTX(t, w.a, 0, 1<<20)
			ca, cb := w.connect(7, false)
			var lost atomic.Bool
			var acks atomic.Int64
			if v == "device" {
				w.na.HoldCompletions(true)
			} else {
				lost.Store(true)
				w.nb.Filter(func(h *splitter.Headers, payload int) bool {
					acks.Add(1)
					return !lost.Load()
				})
			}
			pattern(w.na.Memory()[100:5100], 9, 0)
			send(t, ca, tx, 100, 5000)
			got := make([]byte, 5000)
			_, err := io.ReadFull(cb, got)
			testkit.OK(t, err)
			testkit.Equal(t, "bytes", string(got), string(w.na.Memory()[100:5100]))
			testkit.Eventually(t, "what must be before a completion could be wrong", func() bool {
				return v == "ack" && acks.Load() > 0 || v == "device" && strings.Contains(ca.State(), "una 5000")
			})
			if lo, hi, err := ca.ReadCompletion(time.Now().Add(-1)); !isTimeout(err) {
				t.Errorf("complete: [%d, %d], %v", lo, hi, err)
			}
			if v == "device" {
				w.na.HoldCompletions(false)
			} else {
				lost.Store(false)
			}
			if lo, hi := completed(t, ca); lo != 0 || hi != 0 {
				t.Errorf("[%d, %d]", lo, hi)
			}
		})
	}
}

func TestUnsteeredFlowOnABoundQueue(t *testing.T) {
	t.Parallel()
	w := newRig(t, stacktest.Options{GPUSize: 16 << 20})
	bindRX(t, w.b, 0, 8<<20, 9999, 1)
	testkit.OK(t, w.b.SetRSS(2))
	onQueue := [2]int{}
	for range 16 {
		ca, cb := w.connect(7, false)
		write(t, ca, "hello")
		b := make([]byte, 10)
		switch n, err := cb.Read(b); {
		case errors.Is(err, syscall.EFAULT):
			testkit.Equal(t, "bytes", string(w.nb.Memory()[frag(t, cb, 5).Off:][:5]), "hello")
			onQueue[1]++
		case err == nil && string(b[:n]) == "hello":
			onQueue[0]++
		default:
			t.Errorf("read: %q, %v", b[:n], err)
		}
		ca.Close()
		cb.Close()
	}
	if onQueue[0] == 0 || onQueue[1] == 0 {
		t.Errorf("connections by queue: %v", onQueue)
	}
	balanced(t, w.b)
}

func TestLinearHeads(t *testing.T) {
	w := newRig(t, stacktest.Options{LinearHead: 200, Cut: true})
	bindRX(t, w.b, 0, 1<<20, 7, 1)
	tx := bindTX(t, w.a, 0, 1<<20)
	ca, cb := w.connect(7, false)
	s, r := newSender(ca, tx, w.na.Memory()[:1<<20], 5, 300_000), newReceiver(cb, w.nb.Memory(), 5, 300_000, 0)
	testkit.OK(t, all([]devmem.Conn{ca, cb}, s.run, r.run))
	if r.linear == 0 || r.device == 0 || r.linear+r.device != 300_000 {
		t.Errorf("%d linear bytes, %d in device memory", r.linear, r.device)
	}
}

func TestStallLimit(t *testing.T) {
	t.Parallel()
	w := newRig(t, stacktest.Options{})
	tx := bindTX(t, w.a, 0, 1<<20)
	ca, cb := w.connect(7, false)
	w.na.Filter(func(*splitter.Headers, int) bool { return false })
	ca.SetStallLimit(300 * time.Millisecond)
	cb.SetStallLimit(300 * time.Millisecond)
	send(t, ca, tx, 0, 1000)
	_, _, err := ca.ReadCompletion(time.Time{})
	var stall *devmem.StallError
	if !errors.As(err, &stall) || !isTimeout(err) || !strings.Contains(err.Error(), "una 0 nxt 1000") {
		t.Errorf("sender: %v", err)
	}
	_, _, _, err = cb.RecvDevmem(make([]devmem.Frag, 1), make([]byte, 1), 0)
	if !errors.As(err, &stall) || !strings.Contains(stall.State, "ESTABLISHED") {
		t.Errorf("receiver: %v", err)
	}
}

func TestDialErrors(t *testing.T) {
	testkit.Slow(t)
	t.Parallel()
	w := newRig(t, stacktest.Options{})
	for _, c := range []struct {
		to   string
		want []error
	}{
		{"10.0.0.2:1234", []error{syscall.ECONNREFUSED}},
		{"192.0.2.1:1", []error{syscall.ENETUNREACH, syscall.EHOSTUNREACH}},
		{"10.0.0.77:1", []error{syscall.EHOSTUNREACH}},
	} {
		if c.to == "10.0.0.77:1" { // no host answers, so three seconds of asking are enough
			testkit.OK(t, w.a.AskNeighbors(3))
		}
		_, err := w.a.Dial(t.Context(), netip.AddrPort{}, netip.MustParseAddrPort(c.to))
		if !slices.ContainsFunc(c.want, func(want error) bool { return errors.Is(err, want) }) {
			t.Errorf("%s: %v", c.to, err)
		}
	}
	l, err := w.a.Listen(netip.AddrPortFrom(w.a4, 80))
	testkit.OK(t, err)
	testkit.ErrorIs(t, testkit.Err(w.a.Listen(netip.AddrPortFrom(w.a4, 80))), syscall.EADDRINUSE, "second listener")
	testkit.ErrorIs(t, testkit.Err(w.a.Listen(netip.AddrPortFrom(w.b4, 80))), syscall.EADDRNOTAVAIL,
		"listen on another's address")
	done := make(chan error, 1)
	go func() { _, err := l.Accept(); done <- err }()
	l.Close()
	testkit.ErrorIs(t, <-done, net.ErrClosed, "accept")
}

func TestManyConnections(t *testing.T) {
	testkit.Slow(t)
	t.Parallel()
	w := newRig(t, stacktest.Options{GPUSize: 16 << 20, Reorder: 0.02, Seed: 4, Cut: true})
	rx := bindRX(t, w.b, 0, 8<<20, 7, 1, 2)
	tx := bindTX(t, w.a, 0, 8<<20)
	l, err := w.b.Listen(w.addr(7))
	testkit.OK(t, err)
	const n, size = 60, 30_000
	pattern(w.na.Memory()[:size], 1, 0)
	want := string(w.na.Memory()[:size])
	serve := func(c devmem.Conn) error {
		c.SetStallLimit(time.Minute)
		defer c.Close()
		frags, linear := make([]devmem.Frag, 32), make([]byte, size)
		got := ""
		for len(got) < size {
			_, nf, _, err := c.RecvDevmem(frags, linear[:size-len(got)], 0)
			if errors.Is(err, syscall.ECONNRESET) {
				return nil
			}
			if err != nil {
				return fmt.Errorf("recv at %d: %w: %s", len(got), err, c.State())
			}
			for _, f := range frags[:nf] {
				got += string(w.nb.Memory()[f.Off : f.Off+uint64(f.Size)])
				if _, err := c.DontNeed([]devmem.TokenRange{{Start: f.Token, Count: 1}}); err != nil {
					return err
				}
			}
		}
		if got != want {
			return errors.New("wrong bytes")
		}
		c.Write([]byte("!"))
		return nil
	}
	var servers, clients errgroup.Group
	servers.Go(func() error {
		for {
			c, err := l.AcceptConn() // fewer than n if a client resets during the handshake
			if errors.Is(err, net.ErrClosed) {
				return nil
			}
			if err != nil {
				return err
			}
			servers.Go(func() error { return serve(c) })
		}
	})
	for i := range n {
		clients.Go(func() error {
			c, err := w.a.Dial(t.Context(), netip.AddrPort{}, w.addr(7))
			if err != nil {
				return err
			}
			c.SetStallLimit(time.Minute)
			if k, err := c.SendDevmem(tx.ID(), []devmem.Range{{Off: 0, Len: size}}); err != nil || k != size {
				return fmt.Errorf("send: %d, %w", k, err)
			}
			switch i % 4 {
			case 0: // wait for the peer's answer
				if _, err := c.Read(make([]byte, 1)); err != nil {
					return fmt.Errorf("answer: %w", err)
				}
			case 1:
				c.SetLinger(0)
			case 2:
				if err := c.CloseWrite(); err != nil {
					return err
				}
				if _, _, err := c.ReadCompletion(time.Time{}); err != nil {
					return fmt.Errorf("completion: %w", err)
				}
			}
			return c.Close()
		})
	}
	testkit.OK(t, clients.Wait())
	l.Close()
	testkit.OK(t, servers.Wait())
	unbind(tx, rx)
}

func TestRebindUnderTraffic(t *testing.T) {
	t.Parallel()
	w := newRig(t, stacktest.Options{GPUSize: 16 << 20})
	buf, err := w.b.Register(0, 0, 8<<20)
	testkit.OK(t, err)
	_, err = w.b.AddFlow(devmem.Flow{Dst: w.addr(7), Queue: 1})
	testkit.OK(t, err)
	tx := bindTX(t, w.a, 0, 8<<20)
	l := testkit.Must(w.b.Listen(w.addr(7)))(t)
	defer l.Close()
	total := short(24 << 20)
	var rebinds atomic.Int64
	var g errgroup.Group
	stop := make(chan struct{})
	g.Go(func() error {
		defer close(stop)
		for first := true; first || rebinds.Load() < 3; first = false { // a transfer may end before the third rebind
			ca, err := w.a.Dial(t.Context(), netip.AddrPort{}, w.addr(7))
			if err != nil {
				return err
			}
			cb, err := l.AcceptConn()
			if err != nil {
				return err
			}
			ca.SetStallLimit(time.Minute)
			cb.SetStallLimit(time.Minute)
			if err := errors.Join(w.stream(ca, cb, tx, 8<<20, total, 0), ca.Close(), cb.Close()); err != nil {
				return err
			}
		}
		return nil
	})
	for running := true; running; rebinds.Add(1) {
		b := testkit.Must(w.b.BindRX(buf, 1))(t)
		before := w.b.Stats().RxSegments
		testkit.Eventually(t, "some traffic, or the end", func() bool {
			select {
			case <-stop:
				running = false
			default:
			}
			return !running || w.b.Stats().RxSegments >= before+3
		})
		testkit.OK(t, b.Close())
		<-b.Done()
	}
	testkit.OK(t, g.Wait())
	testkit.OK(t, buf.Close())
	if buffers, bindings := w.nb.Left(); buffers+bindings > 0 {
		t.Errorf("the NIC knows %d buffers and %d bindings", buffers, bindings)
	}
}

func TestWindowFitsThePool(t *testing.T) {
	const pages = 256
	for _, v6 := range []bool{false, true} {
		for merge, most := range map[bool]int{false: pages * 1448 / 2, true: pages * 2048 / 2} { // half of the buffer
			w := newRig(t, stacktest.Options{Cut: true, Merge: merge})
			bindRX(t, w.b, 0, pages*4096, 7, 1)
			ca, cb := w.connect(7, v6)
			wnd := 0
			testkit.Eventually(t, "the window is open", func() bool {
				write(t, ca, strings.Repeat("x", 4<<10))
				skip(t, cb, 4<<10)
				state, s, _ := strings.Cut(ca.State(), " wnd ")
				testkit.Must(fmt.Sscan(s, &wnd))(t)
				return wnd > most*9/10 && !strings.Contains(state, " una 0 ") // a SYN's window is not scaled
			})
			if wnd > most {
				t.Errorf("v6=%v merge=%v: a window of %d bytes, %d fit", v6, merge, wnd, most)
			}
		}
	}
}

func TestZeroWindow(t *testing.T) {
	t.Parallel()
	for _, device := range []bool{false, true} {
		for _, v6 := range []bool{false, true} {
			t.Run(fmt.Sprintf("device=%v/v6=%v", device, v6), func(t *testing.T) {
				t.Parallel()
				w := newRig(t, stacktest.Options{}, rack, func(o *stack.Options) { o.RecvBuffer = 128 << 10 })
				if device {
					bindRX(t, w.b, 0, 2<<20, 7, 1)
				}
				tx := bindTX(t, w.a, 0, 4<<20)
				ca, cb := w.connect(7, v6)
				const total = 512 << 10
				pattern(w.na.Memory()[:total], 6, 0)
				send(t, ca, tx, 0, total)
				testkit.Eventually(t, "the window is closed", func() bool {
					return strings.Contains(ca.State(), " wnd 0 sends")
				})
				var cutOff atomic.Bool
				cutOff.Store(true)
				var probes atomic.Int64
				w.nb.Filter(func(*splitter.Headers, int) bool { return !cutOff.Load() })
				w.na.Filter(func(*splitter.Headers, int) bool {
					if probes.Add(1) == 2 {
						cutOff.Store(false) // B's answer to A's first packet is lost
					}
					return true
				})
				testkit.OK(t, ca.CloseWrite())
				if err := newReceiver(cb, w.nb.Memory(), 6, total, 0).run(); err != nil {
					t.Fatalf("%v\na: %s\nb: %s", err, ca.State(), cb.State())
				}
				completed(t, ca)
				balanced(t, w.b)
			})
		}
	}
}

func TestRestore(t *testing.T) {
	t.Parallel()
	w := newRig(t, stacktest.Options{})
	rx := bindRX(t, w.b, 0, 1<<20, 7, 1)
	tx := bindTX(t, w.a, 0, 1<<20)
	testkit.OK(t, w.b.SetRSS(1))
	id := testkit.Must(w.b.AddFlow(devmem.Flow{Dst: w.addr(9), Queue: 2}))(t)
	ca, cb := w.connect(7, false)
	var g errgroup.Group
	g.Go(func() error {
		return w.stream(ca, cb, tx, 1<<20, short(8<<20), 10)
	})
	for _, n := range []*stacktest.NIC{w.na, w.nb} {
		n.Forget()
	}
	for _, s := range []*stack.Stack{w.a, w.b} {
		testkit.OK(t, s.Restore(t.Context()))
	}
	testkit.OK(t, g.Wait())
	testkit.OK(t, w.b.DelFlow(id))
	unbind(tx, rx)
	if _, bindings := w.nb.Left(); bindings > 0 {
		t.Errorf("the NIC knows %d bindings", bindings)
	}
}

func TestNICStops(t *testing.T) {
	w := newRig(t, stacktest.Options{})
	bindRX(t, w.b, 0, 1<<20, 7, 1)
	tx := bindTX(t, w.a, 0, 1<<20)
	ca, cb := w.connect(7, false)
	send(t, ca, tx, 0, 100)
	if n, err := cb.Read(make([]byte, 1)); !errors.Is(err, syscall.EFAULT) {
		t.Fatal(n, err)
	}
	skip(t, cb, 100)
	errs := make(chan error, 1)
	go func() {
		_, _, _, err := cb.RecvDevmem(make([]devmem.Frag, 1), make([]byte, 1), 0)
		errs <- err
	}()
	w.nb.Break()
	if err := <-errs; !errors.Is(err, syscall.ENETDOWN) || !errors.Is(err, syscall.ENODEV) {
		t.Errorf("recv: %v", err)
	}
	testkit.ErrorIs(t, testkit.Err(cb.Write([]byte("x"))), syscall.ENETDOWN, "write")
}

func TestNICStopsWhoWaitsForConnections(t *testing.T) {
	w := newRig(t, stacktest.Options{})
	l := testkit.Must(w.b.Listen(netip.AddrPortFrom(w.b4, 9)))(t)
	errs := make(chan error, 2)
	go func() { errs <- testkit.Err(l.AcceptConn()) }()
	w.nb.Break()
	check := func(err error) {
		t.Helper()
		var no syscall.Errno
		if !errors.As(err, &no) || no != syscall.ENODEV {
			t.Errorf("%v is %v", err, no)
		}
	}
	check(<-errs)
	check(testkit.Err(w.b.Dial(t.Context(), netip.AddrPort{}, netip.AddrPortFrom(w.a4, 9))))
}

func TestOrdinaryTraffic(t *testing.T) {
	t.Parallel()
	for name, o := range map[string]stacktest.Options{
		"gso": {}, "cut": {Cut: true, Checksums: true}, "lossy": {MTU: 9000, Cut: true, Merge: true, Loss: 0.01},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newRig(t, o)
			for _, v6 := range []bool{false, true} {
				ca, cb := w.connect(7, v6)
				const total = 1 << 20
				var g errgroup.Group
				for i, c := range []devmem.Conn{ca, cb} {
					g.Go(func() error {
						b := make([]byte, total)
						pattern(b, uint64(i), 0)
						_, err := c.Write(b)
						return errors.Join(err, c.CloseWrite())
					})
					g.Go(func() error {
						want := make([]byte, total)
						pattern(want, uint64(1-i), 0)
						got, err := io.ReadAll(c)
						if err == nil && string(got) != string(want) {
							return fmt.Errorf("%d bytes, wrong", len(got))
						}
						return err
					})
				}
				if err := g.Wait(); err != nil {
					t.Fatalf("%v\na: %s\nb: %s", err, ca.State(), cb.State())
				}
				ca.Close()
				cb.Close()
			}
			if w.na.BadSums()+w.nb.BadSums() > 0 {
				t.Error("bad checksums")
			}
		})
	}
}
