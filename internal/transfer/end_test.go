package transfer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"time"

	"vnic.dev/vnic/devmem"
	"vnic.dev/vnic/internal/testkit"
)

func (w *world) arrived(n uint64) {
	w.t.Helper()
	testkit.Eventually(w.t, "payload", func() bool {
		var all uint64
		for i := range 2 {
			rx, _ := w.b.port.QueueCounters(i)
			all += rx.DeviceBytes + rx.HostBytes
		}
		return all >= n
	})
}

// Invariant: guest-images: A transfer that ends at any moment leaves no state in NIC and stack.
func TestCancelInTheMiddle(t *testing.T) {
	for _, mode := range modes {
		for _, who := range []string{"sender", "receiver", "both", "connections"} {
			t.Run(mode+"/"+who, func(t *testing.T) {
				w := newWorld(t, options{})
				// In mode devmem no tokens are returned, so the transfer cannot complete. A queue without pages receives
				// nothing, not even the peer's RST: an end that is not cancelled may stall first.
				send, recv := w.prepares(trial{mode: mode, size: 7 << 20, pages: 128, hold: 1 << 40, stall: 2, seed: 1})
				testkit.OK(t, w.connect(t.Context(), send, recv))
				sctx, scancel := context.WithCancel(t.Context())
				rctx, rcancel := context.WithCancel(t.Context())
				defer scancel()
				defer rcancel()
				serrs := start(sctx, w.a.send)
				var rerrs <-chan error
				if mode == Devmem {
					rerrs = start(rctx, w.b.receive)
					w.arrived(100 << 10)
				} else {
					w.arrived(100 << 10) // without a reader, A sends no more than the connection's buffers take
					rerrs = start(rctx, w.b.receive)
					testkit.Eventually(t, "Receive", func() bool { return w.b.busy() == 1 || len(rerrs) > 0 })
				}
				for name, cancel := range map[string]func(){"sender": scancel, "receiver": rcancel} {
					if who == name || who == "both" {
						cancel()
					}
				}
				if who == "connections" {
					w.b.node.mu.Lock()
					c := w.b.node.now.conn
					w.b.node.mu.Unlock()
					abort(c)
				}
				for name, err := range map[string]error{"sender": <-serrs, "receiver": <-rerrs} {
					if mode == Copy && err == nil {
						continue // it completed before the cancellation
					}
					if err == nil || (who == name || who == "both") != errors.Is(err, context.Canceled) {
						t.Errorf("%s: %v", name, err)
					}
				}
				w.finish()
				w.end()
				w.run(trial{mode: mode, size: 1 << 20, seed: 2})
			})
		}
	}
}

// Invariant: guest-images: A transfer that ends at any moment leaves no state in NIC and stack.
func TestFinishEndsWhatIsUnderWay(t *testing.T) {
	w := newWorld(t, options{})
	x := trial{mode: Devmem, size: 4 << 20, pages: 128, hold: 1 << 40, seed: 9}
	t.Run("prepared", func(t *testing.T) {
		w := w.in(t)
		send, recv := w.prepares(x)
		testkit.OK(t, errors.Join(Prepare(t.Context(), w.a.end, send), Prepare(t.Context(), w.b.end, recv)))
		testkit.ErrorIs(t, Prepare(t.Context(), w.a.end, send), syscall.EBUSY)
		w.end()
	})
	t.Run("accepting", func(t *testing.T) {
		w := w.in(t)
		_, recv := w.prepares(x)
		testkit.OK(t, errors.Join(Prepare(t.Context(), w.b.end, recv), Listen(t.Context(), w.b.end)))
		if err := Listen(t.Context(), w.b.end); err == nil {
			t.Error("a second Listen")
		}
		errs := start(t.Context(), on(w.b.end, Accept))
		testkit.Eventually(t, "Accept", func() bool { return w.b.busy() == 1 })
		w.finish()
		testkit.ErrorIs(t, <-errs, errFinished, "accept")
		w.b.empty()
	})
	t.Run("connecting", func(t *testing.T) {
		w := w.in(t)
		send, _ := w.prepares(x)
		send.Remote = netip.AddrPortFrom(netip.MustParseAddr("10.118.110.99"), send.Remote.Port()) // no such host
		testkit.OK(t, Prepare(t.Context(), w.a.end, send))
		errs := start(t.Context(), on(w.a.end, Connect))
		testkit.Eventually(t, "Connect", func() bool { return w.a.busy() == 1 })
		w.finish()
		testkit.ErrorIs(t, <-errs, errFinished, "connect")
		w.a.empty()
	})
	for _, mode := range modes {
		t.Run("transferring "+mode, func(t *testing.T) {
			w := w.in(t)
			x := x
			x.mode = mode
			send, recv := w.prepares(x)
			testkit.OK(t, w.connect(t.Context(), send, recv))
			rerrs := start(t.Context(), w.b.receive)
			if mode == Devmem {
				serrs := start(t.Context(), w.a.send)
				w.arrived(100 << 10)
				w.finish() // ends the sender first, which resets the receiver's connection
				testkit.ErrorIs(t, <-serrs, errFinished, "send")
				if err := <-rerrs; !errors.Is(err, errFinished) && !errors.Is(err, syscall.ECONNRESET) {
					t.Errorf("receive: %v", err)
				}
			} else {
				testkit.Eventually(t, "Receive", func() bool { return w.b.busy() == 1 })
				testkit.OK(t, Finish(t.Context(), w.b.end))
				w.finish()
				testkit.ErrorIs(t, <-rerrs, errFinished, "receive")
			}
			w.a.empty()
			w.b.empty()
			w.run(trial{mode: mode, size: 1 << 20, seed: 2})
		})
	}
	t.Run("nothing", func(t *testing.T) {
		w := w.in(t)
		w.finish()
		for what, err := range map[string]error{"listen": Listen(t.Context(), w.a.end),
			"connect": Connect(t.Context(), w.a.end), "accept": Accept(t.Context(), w.a.end)} {
			testkit.ErrorIs(t, err, syscall.EINVAL, "%s of nothing", what)
		}
		testkit.ErrorIs(t, testkit.Err(Send(t.Context(), w.a.end)), syscall.EINVAL)
		testkit.Equal(t, "state", State(t.Context(), w.a.end), "no connection")
	})
}

func start(ctx context.Context, f func(context.Context) error) <-chan error {
	errs := make(chan error, 1)
	go func() { errs <- f(ctx) }()
	return errs
}

func (g *guest) busy() int {
	g.node.mu.Lock()
	defer g.node.mu.Unlock()
	if g.node.now == nil {
		return 0
	}
	return len(g.node.now.running)
}

func TestOrderOfCalls(t *testing.T) {
	w := newWorld(t, options{})
	send, recv := w.prepares(trial{mode: Devmem, size: 100000, seed: 9})
	testkit.OK(t, errors.Join(Prepare(t.Context(), w.a.end, send), Prepare(t.Context(), w.b.end, recv)))
	testkit.ErrorIs(t, testkit.Err(Send(t.Context(), w.a.end)), syscall.ENOTCONN, "send before connect")
	testkit.ErrorIs(t, Accept(t.Context(), w.b.end), syscall.EINVAL, "accept before listen")
	testkit.OK(t, errors.Join(Listen(t.Context(), w.b.end), both(t.Context(), on(w.a.end, Connect), on(w.b.end, Accept))))
	testkit.ErrorIs(t, testkit.Err(Receive(t.Context(), w.a.end)), syscall.EINVAL, "receive by the sender")
	testkit.ErrorIs(t, testkit.Err(Send(t.Context(), w.b.end)), syscall.EINVAL, "send by the receiver")
	w.moves()
	w.check(recv, send.Seed)
	testkit.ErrorIs(t, testkit.Err(Send(t.Context(), w.a.end)), syscall.EALREADY, "send again")
	w.end()
}

func TestAcceptTakesOnlyThePeer(t *testing.T) {
	w := newWorld(t, options{})
	send, recv := w.prepares(trial{mode: Devmem, size: 100000, seed: 9})
	testkit.OK(t, errors.Join(Prepare(t.Context(), w.a.end, send), Prepare(t.Context(), w.b.end, recv),
		Listen(t.Context(), w.b.end)))
	c := testkit.Must(w.a.node.dev.Dial(t.Context(), netip.AddrPort{}, recv.Local))(t)
	defer c.Close()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	accepted := start(ctx, on(w.b.end, Accept))
	testkit.OK(t, c.SetReadDeadline(time.Now().Add(testkit.Patience)))
	if _, err := c.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) && !errors.Is(err, io.EOF) {
		t.Errorf("the stranger: %v", err)
	}
	err := Connect(ctx, w.a.end)
	if err != nil {
		cancel()
	}
	testkit.OK(t, errors.Join(err, <-accepted))
	w.moves()
	w.check(recv, send.Seed)
	w.finish()
}

var errAny = errors.New("an error")

func TestPrepareLeavesNothingAfterAnError(t *testing.T) {
	w := newWorld(t, options{pairs: 3})
	buf := testkit.Must(w.b.node.dev.Register(1, 4<<20, 1<<20))(t)
	taken := testkit.Must(w.b.node.dev.BindRX(buf, 2))(t)
	var rules []devmem.FlowID
	for _, x := range []struct {
		name   string
		want   error
		change func(p *PrepareArgs)
	}{
		{"mode", syscall.EINVAL, func(p *PrepareArgs) { p.Mode = "teleport" }},
		{"no bytes", syscall.EINVAL, func(p *PrepareArgs) { p.Len = 0 }},
		{"more bytes than buffer", syscall.EINVAL, func(p *PrepareArgs) { p.Len = p.Bytes + 1 }},
		{"no such GPU", syscall.ENODEV, func(p *PrepareArgs) { p.GPU = 7 }},
		{"GPU of A", syscall.ENODEV, func(p *PrepareArgs) { p.GPU = 0 }},
		{"negative GPU", syscall.EINVAL, func(p *PrepareArgs) { p.GPU = -1 }},
		{"offset", syscall.EINVAL, func(p *PrepareArgs) { p.Off++ }},
		{"size", syscall.EINVAL, func(p *PrepareArgs) { p.Bytes++ }},
		{"beyond the GPU", syscall.EINVAL, func(p *PrepareArgs) { p.Off = 16 << 20 }},
		{"around the end", syscall.EINVAL, func(p *PrepareArgs) { p.Off = ^uint64(0) &^ 4095 }},
		{"no address", syscall.EINVAL, func(p *PrepareArgs) { p.Local = netip.AddrPort{} }},
		{"two families", syscall.EINVAL, func(p *PrepareArgs) { p.Remote = netip.AddrPortFrom(w.a.v6, 1) }},
		{"stall", syscall.EINVAL, func(p *PrepareArgs) { p.StallSeconds = -1 }},
		{"no queue", syscall.EINVAL, func(p *PrepareArgs) { p.Queues = nil }},
		{"queue 0", syscall.ERANGE, func(p *PrepareArgs) { p.Queues = []int{0} }},
		{"no such queue", syscall.EINVAL, func(p *PrepareArgs) { p.Queues = []int{1, 9} }},
		{"negative queue", syscall.EINVAL, func(p *PrepareArgs) { p.Queues = []int{-1} }},
		{"queue bound", syscall.EEXIST, func(p *PrepareArgs) { p.Queues = []int{1, 2} }},
		{"pool beyond the GPU", syscall.EINVAL, func(p *PrepareArgs) { p.PoolOff = 16 << 20 }},
		{"pool in the data", syscall.EINVAL, func(p *PrepareArgs) { p.PoolOff = p.Off }},
		{"no pool", syscall.EINVAL, func(p *PrepareArgs) { p.PoolBytes = 0 }},
		{"pool too small", syscall.ENOSPC, func(p *PrepareArgs) { p.PoolBytes = 4096 }},
		{"pool of another binding", syscall.EBUSY, func(p *PrepareArgs) { p.PoolOff = 4 << 20 }},
		{"rules full", errAny, func(p *PrepareArgs) {
			for i := 0; ; i++ {
				f := devmem.Flow{Dst: netip.AddrPortFrom(w.b.v4, uint16(10000+i)), Queue: 1}
				id, err := w.b.node.dev.AddFlow(f)
				if err != nil {
					return
				}
				rules = append(rules, id)
			}
		}},
	} {
		t.Run(strings.ReplaceAll(x.name, " ", "_"), func(t *testing.T) {
			_, p := w.prepares(trial{mode: Devmem, size: 1 << 20, pages: 256})
			p.Queues = []int{1}
			x.change(&p)
			before := w.b.holds()
			if err := Prepare(t.Context(), w.b.end, p); err == nil || x.want != errAny && !errors.Is(err, x.want) {
				t.Errorf("%v, want %v", err, x.want)
			}
			testkit.Equal(t, "left in the NIC", w.b.holds(), before)
		})
	}
	for _, id := range rules {
		testkit.OK(t, w.b.node.dev.DelFlow(id))
	}
	t.Run("cancelled", func(t *testing.T) {
		_, p := w.prepares(trial{mode: Devmem, size: 1 << 20, pages: 256})
		before := w.b.holds()
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		testkit.ErrorIs(t, Prepare(ctx, w.b.end, p), context.Canceled)
		for range 20 {
			ctx, cancel := context.WithCancel(t.Context())
			errs := start(ctx, func(ctx context.Context) error { return Prepare(ctx, w.b.end, p) })
			testkit.Eventually(t, "Prepare", func() bool { return w.b.busy() > 0 || len(errs) > 0 })
			cancel()
			if err := <-errs; err != nil && !errors.Is(err, context.Canceled) {
				t.Error(err)
			}
			testkit.OK(t, Finish(t.Context(), w.b.end))
			if after := w.b.holds(); after != before {
				t.Fatalf("left in the NIC: %s, before: %s", after, before)
			}
		}
	})
	testkit.OK(t, errors.Join(unbind(t.Context(), taken), buf.Close()))
	w.run(trial{mode: Devmem, size: 1 << 20, seed: 1})
}

// holds describes what the guest's NIC and stack hold. It asks them directly, not through g.end.
func (g *guest) holds() string {
	flows, _ := g.port.Flows()
	buffers, _ := g.port.Buffers()
	bindings, _ := g.port.Bindings()
	var split []int
	for i := range g.drv.QueuePairs() {
		if s, err := g.port.Split(uint16(i)); err != nil || s.On {
			split = append(split, i)
		}
	}
	var ids []uint32
	for _, b := range g.node.dev.Stats().Bindings {
		ids = append(ids, b.ID)
	}
	return fmt.Sprintf("%d rules, buffers %v, bindings %v, split queues %v; stack: bindings %v", len(flows), buffers,
		bindings, split, ids)
}
