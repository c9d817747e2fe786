package rdma

import (
	"context"
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"vnic.dev/vnic/internal/control"
	"vnic.dev/vnic/internal/testkit"
)

func (e *end) sge(t *testing.T, off, n uint64) SGE {
	t.Helper()
	return testkit.Must(e.mr.Part(off, n).SGE())(t)
}

func TestSendAndReceive(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b, _ := pair(t)
		ctx := t.Context()
		send := WR{ID: 1, Op: control.WRSend, SGEs: []SGE{a.sge(t, 0, 10), a.sge(t, 10, 90)}}
		imm := WR{ID: 2, Op: control.WRSendImm, Flags: control.WRSignaled, Imm: 0xabcd, SGEs: []SGE{a.sge(t, 100, 50)}}
		testkit.Must(a.qp.Post(ctx, send, imm))(t)
		if wcs, err := a.cq.Poll(ctx, 10); len(wcs) != 0 || err != nil {
			t.Fatalf("complete, and nobody received: %+v, %v", wcs, err)
		}
		recv := []WR{{ID: 3, SGEs: []SGE{b.sge(t, 0, 60), b.sge(t, 60, 60)}}, {ID: 4, SGEs: []SGE{b.sge(t, 100, 50)}}}
		testkit.Must(b.qp.PostRecv(ctx, recv...))(t)
		got := testkit.Must(b.cq.Wait(ctx))(t)
		if len(got) != 2 || got[0].ID != 3 || got[0].Len != 100 || got[0].HasImm || got[1].ID != 4 || got[1].Imm != 0xabcd {
			t.Errorf("%+v", got)
		}
		sent := testkit.Must(a.cq.Wait(ctx))(t)
		if len(sent) != 1 || sent[0].ID != 2 || sent[0].QPN != a.qp.Number {
			t.Errorf("%+v", sent) // the first was not signaled
		}
		same(t, a, b, 0, 0, 150)

		testkit.Must(b.qp.PostRecv(ctx, WR{ID: 5, SGEs: []SGE{b.sge(t, 0, 9)}}, WR{ID: 6}))(t)
		send.SGEs = []SGE{a.sge(t, 0, 10)}
		testkit.Must(a.qp.Post(ctx, send, imm))(t)
		for e, want := range map[*end][]control.WCStatus{a: {control.WCRemoteInvalid, control.WCFlushed},
			b: {control.WCLocalLength, control.WCFlushed}} {
			wcs, err := e.cq.Wait(ctx)
			if err != nil || len(wcs) != 2 || wcs[0].Status != want[0] || wcs[1].Status != want[1] {
				t.Errorf("too long a message: %+v, %v, want %v", wcs, err, want)
			}
		}
		closeAll(t, a, b)
	})
}

func TestFullQueues(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b, _ := pair(t)
		ctx := t.Context()
		a.nic.set(func() { a.nic.hold = true })
		many := make([]WR, 45)
		for i := range many {
			many[i] = WR{ID: uint64(i), Op: control.WRWrite, Flags: control.WRSignaled, Key: b.mr.Key,
				SGEs: []SGE{a.sge(t, 0, 1)}}
		}
		n, err := a.qp.Post(ctx, many...)
		if n != 30 || !errors.Is(err, ErrFull) { // 40 entries, and frames of 30 and 15
			t.Fatalf("%d posted, %v", n, err)
		}
		if s := testkit.Must(a.qp.Status(ctx))(t); s.Sends != 30 {
			t.Errorf("%+v", s)
		}
		if n, err := a.qp.Post(ctx, many[30:40]...); n != 10 || err != nil {
			t.Errorf("%d posted, %v", n, err)
		}
		a.nic.release()
		n, err = a.qp.Post(ctx, many[:30]...) // 40 of the CQ's 64 entries are in use
		if n != 0 || !errors.Is(err, ErrFull) {
			t.Errorf("%d posted, %v", n, err)
		}
		var got []WC
		for len(got) < 40 {
			wcs := testkit.Must(a.cq.Poll(ctx, 7))(t)
			if len(wcs) == 0 || len(wcs) > 7 {
				t.Fatalf("%d completions", len(wcs))
			}
			got = append(got, wcs...)
		}
		for i, w := range got {
			if w.ID != uint64(i) || Err(w) != nil {
				t.Errorf("completion %d: %+v", i, w)
			}
		}
		if n, err = a.qp.Post(ctx, many[:30]...); n != 30 || err != nil {
			t.Errorf("after polling: %d posted, %v", n, err)
		}
		if n, err = a.qp.PostRecv(ctx, make([]WR, 11)...); n != 0 || !errors.Is(err, ErrFull) {
			t.Errorf("receives: %d posted, %v", n, err)
		}
		closeAll(t, a, b)
	})
}

func TestNotConnected(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b, _ := pair(t)
		qp := testkit.Must(a.pd.NewQP(QPConfig{SendCQ: a.cq, RecvCQ: a.cq, MaxSend: 1, MaxRecv: 1}))(t)
		testkit.ErrorIs(t, testkit.Err(qp.Post(t.Context(), WR{Op: control.WRSend})), syscall.ENOTCONN)
		testkit.NoError(t, testkit.Err(qp.PostRecv(t.Context(), WR{})))
		testkit.NoError(t, qp.Close())
		testkit.NoError(t, qp.Close())
		testkit.ErrorIs(t, testkit.Err(qp.Post(t.Context(), WR{Op: control.WRSend})), net.ErrClosed)
		testkit.ErrorIs(t, a.qp.Connect(t.Context(), a.qp.path(t)), syscall.EISCONN)
		closeAll(t, a, b)
	})
}

func (q *QP) path(t *testing.T) Path {
	a := testkit.Must(net.ResolveIPAddr("ip", "10.0.0.9"))(t).IP
	addr, _ := addrOf(a)
	return Path{RemoteQPN: 5, Local: addr, Remote: addr, MTU: 1024}
}

func TestWaitIsTold(t *testing.T) {
	for _, lost := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			a, b, _ := pair(t)
			ctx := t.Context()
			a.nic.set(func() { a.nic.lose = lost })
			for range 3 {
				before := a.nic.asked()
				var wg sync.WaitGroup
				wg.Go(func() {
					wcs, err := a.cq.Wait(ctx)
					if err != nil || len(wcs) != 1 {
						t.Errorf("%+v, %v", wcs, err)
					}
				})
				synctest.Wait() // without a notify Wait polls only when time passes
				if a.nic.asked() != before {
					t.Errorf("asked %d times in vain", a.nic.asked()-before)
				}
				if lost {
					time.Sleep(5 * time.Second) // in synctest's time
					if n := a.nic.asked() - before; n < 5 || n > 10 {
						t.Errorf("asked %d times in 5 s", n)
					}
				}
				before = a.nic.asked()
				wr := WR{ID: 1, Op: control.WRWrite, Flags: control.WRSignaled}
				testkit.Must(a.qp.Post(ctx, wr))(t)
				wg.Wait()
				if n := a.nic.asked() - before; n != 1 {
					t.Errorf("lost %v: asked %d times", lost, n)
				}
			}
			closeAll(t, a, b)
		})
	}
}

// TestWaitTakesMoreThanAFrame makes completions for two frames: two calls of Wait get them all, with two polls.
func TestWaitTakesMoreThanAFrame(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b, _ := pair(t)
		cq := testkit.Must(a.d.NewCQ(200))(t)
		qp := testkit.Must(a.pd.NewQP(QPConfig{SendCQ: cq, RecvCQ: cq, MaxSend: 100}))(t)
		a2 := *a
		a2.qp = qp
		b2 := *b
		b2.qp = testkit.Must(b.pd.NewQP(QPConfig{SendCQ: b.cq, RecvCQ: b.cq, MaxSend: 1}))(t)
		_, _, errA, errB := exchangeOver(t, &a2, &b2)
		testkit.OK(t, errors.Join(errA, errB))
		for range 100 {
			testkit.Must(qp.Post(t.Context(), WR{ID: 1, Op: control.WRWrite, Flags: control.WRSignaled}))(t)
		}
		var wg sync.WaitGroup
		var got atomic.Int32
		for range 2 {
			wg.Go(func() { got.Add(int32(len(testkit.Must(cq.Wait(t.Context()))(t)))) })
		}
		synctest.Wait() // no time passes
		if n := got.Load(); n != 100 || a.nic.asked() != 2 {
			t.Errorf("%d completions, asked %d times", n, a.nic.asked())
		}
		wg.Wait()
		closeAll(t, a, b)
	})
}

// TestNoCompletionIsLostWithItsAnswer ends Wait's context after the NIC was polled and before its answer arrives: Wait
// returns the completion.
func TestNoCompletionIsLostWithItsAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b, _ := pair(t)
		testkit.Must(a.qp.Post(t.Context(), WR{ID: 7, Op: control.WRWrite, Flags: control.WRSignaled}))(t)
		late := make(chan struct{})
		a.nic.set(func() { a.nic.late = late })
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() {
			wcs, err := a.cq.Wait(ctx)
			if len(wcs) != 1 || wcs[0].ID != 7 || err != nil {
				t.Errorf("%+v, %v", wcs, err)
			}
		})
		synctest.Wait()
		cancel()
		synctest.Wait()
		a.nic.set(func() { a.nic.late = nil })
		close(late)
		wg.Wait()
		closeAll(t, a, b)
	})
}

func TestWaitersShareACQ(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b, _ := pair(t)
		var mu sync.Mutex
		var wg sync.WaitGroup
		seen := map[uint64]int{}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		for range 5 {
			wg.Go(func() {
				for {
					wcs, err := a.cq.Wait(ctx)
					if err != nil {
						testkit.ErrorIs(t, err, context.Canceled)
						return
					}
					mu.Lock()
					for _, w := range wcs {
						if seen[w.ID]++; len(seen) == 200 {
							cancel()
						}
					}
					mu.Unlock()
				}
			})
		}
		for i := range uint64(200) {
			a.nic.set(func() { a.nic.lose = i%3 == 0 })
			for {
				_, err := a.qp.Post(t.Context(), WR{ID: i, Op: control.WRWrite, Flags: control.WRSignaled})
				if !errors.Is(err, ErrFull) {
					testkit.OK(t, err)
					break
				}
				time.Sleep(time.Second)
			}
		}
		wg.Wait()
		for id, n := range seen {
			if n != 1 {
				t.Errorf("completion %d was given %d times", id, n)
			}
		}
		closeAll(t, a, b)
	})
}

func TestCloseInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b, peer := pair(t)
		testkit.ErrorIs(t, a.pd.Close(), syscall.EBUSY)
		testkit.ErrorIs(t, a.cq.Close(), syscall.EBUSY)
		testkit.ErrorIs(t, testkit.Err(a.d.NewCQ(4*256+1)), syscall.EINVAL)
		other := testkit.Must(a.d.NewCQ(1))(t)
		a.nic.set(func() { a.nic.hold = true })
		var wg sync.WaitGroup
		for _, cq := range []*CQ{a.cq, other} {
			wg.Go(func() { testkit.ErrorIs(t, testkit.Err(cq.Wait(t.Context())), net.ErrClosed) })
		}
		wg.Go(func() {
			_, err := Put(t.Context(), a.qp, a.mr.Part(0, 100), peer.MR, TransferOptions{})
			testkit.ErrorIs(t, err, net.ErrClosed)
		})
		synctest.Wait()
		testkit.NoError(t, other.Close())
		testkit.ErrorIs(t, testkit.Err(other.Poll(t.Context(), 1)), net.ErrClosed)
		closeAll(t, a, b)
		wg.Wait()
	})
}

func TestReset(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b, peer := pair(t)
		ctx := t.Context()
		a.nic.set(func() { a.nic.hold = true })
		var wg sync.WaitGroup
		var ended atomic.Int32
		wait := func(f func() error) {
			wg.Go(func() {
				testkit.ErrorIs(t, f(), ErrReset)
				ended.Add(1)
			})
		}
		wait(func() error { return testkit.Err(a.cq.Wait(ctx)) })
		wait(func() error {
			return testkit.Err(Put(ctx, a.qp, a.mr.Part(0, 100), peer.MR, TransferOptions{}))
		})
		server := testkit.Must(NewPageServer(a.d, nil, 0))(t)
		wait(func() error { return server.Serve(ctx) })
		synctest.Wait()
		a.nic.reset()
		testkit.Must(a.nic.client.Hello(ctx))(t) // any answer reports the reset
		synctest.Wait()                          // no time passes
		if n := ended.Load(); n != 3 {
			t.Errorf("%d of 3 waits know", n)
		}
		wg.Wait()
		for name, err := range map[string]error{
			"pd": testkit.Err(a.d.AllocPD()), "mr": testkit.Err(a.pd.RegisterBuffer(1, 0, 1, 0)),
			"cq": testkit.Err(a.d.NewCQ(1)), "poll": testkit.Err(a.cq.Poll(ctx, 1)),
			"post": testkit.Err(a.qp.Post(ctx, WR{})), "status": testkit.Err(a.qp.Status(ctx)),
			"counts": testkit.Err(a.d.Counts(ctx)), "mailbox": a.d.SetMailbox(ctx, 0, 0),
		} {
			testkit.ErrorIs(t, err, ErrReset, "%s", name)
			testkit.ErrorIs(t, err, syscall.ESTALE, "%s", name)
		}
		// The fake NIC uses the same numbers again: closing an old object must not delete the new one.
		d := testkit.Must(Open(a.nic.client))(t)
		for range 10 {
			testkit.Must(d.AllocPD())(t)
		}
		testkit.NoError(t, a.d.Close())
		if len(a.nic.pds) != 10 {
			t.Errorf("%d PDs are left of 10", len(a.nic.pds))
		}
		testkit.NoError(t, d.Close())
		testkit.NoError(t, b.d.Close())
		if !a.nic.empty() || !b.nic.empty() {
			t.Error("something is left on a NIC")
		}
	})
}

// TestResetThatAnAnswerTells resets each port before a call to it, which gets the reset from the NIC's answer.
func TestResetThatAnAnswerTells(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b, _ := pair(t)
		a.nic.reset()
		testkit.ErrorIs(t, testkit.Err(a.d.AllocPD()), ErrReset)
		if !a.nic.empty() {
			t.Error("a PD is left that nobody knows")
		}
		b.nic.reset()
		testkit.ErrorIs(t, testkit.Err(b.qp.Status(t.Context())), ErrReset) // and not ENOENT
		testkit.NoError(t, errors.Join(a.d.Close(), b.d.Close()))
	})
}

func TestNICWithoutAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b, _ := pair(t)
		a.nic.set(func() { a.nic.deaf = true })
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		testkit.ErrorIs(t, testkit.Err(a.cq.Wait(ctx)), control.ErrNoAnswer)
		testkit.ErrorIs(t, testkit.Err(a.qp.Post(ctx, WR{Op: control.WRSend})), control.ErrNoAnswer)
		testkit.ErrorIs(t, a.d.Close(), control.ErrNoAnswer)
		testkit.NoError(t, b.d.Close())
	})
}

func TestNoRDMA(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := &fabric{}
		nic := &without{}
		nic.d = control.NewDispatcher(nic)
		nic.client = control.NewClient(nic, control.ClientOptions{})
		defer nic.client.Close()
		err := testkit.Err(Open(nic.client))
		testkit.ErrorIs(t, err, syscall.EOPNOTSUPP)
		testkit.ErrorSays(t, err, "this NIC has no RDMA")
		_ = n
	})
}

type without struct {
	control.Handler
	d      *control.Dispatcher
	client *control.Client
}

func (n *without) Generation() uint32                            { return 1 }
func (n *without) RDMALimits() (l control.RDMALimits, err error) { return l, syscall.EOPNOTSUPP }
func (n *without) Send(frame []byte) error {
	n.client.Receive(n.d.Handle(frame, nil))
	return nil
}
