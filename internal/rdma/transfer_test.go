package rdma

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"

	"vnic.dev/vnic/internal/control"
	"vnic.dev/vnic/internal/testkit"
)

// same fails the test unless [to, to+n) of b's buffer equals [from, from+n) of a's, and the rest of b's is zero.
func same(t *testing.T, a, b *end, from, to, n int) {
	t.Helper()
	src, dst := a.nic.buffers[1], b.nic.buffers[1]
	if !bytes.Equal(dst[to:to+n], src[from:from+n]) {
		t.Error("other bytes than were sent")
	}
	if rest := append(bytes.Clone(dst[:to]), dst[to+n:]...); len(bytes.Trim(rest, "\x00")) > 0 {
		t.Error("bytes outside of the range were written")
	}
}

func TestPutAndGet(t *testing.T) {
	for _, tc := range []struct {
		n      uint64
		o      TransferOptions
		posted uint64
	}{
		{0, TransferOptions{}, 0},
		{1, TransferOptions{}, 1},
		{4096, TransferOptions{Size: 4096}, 1},
		{4097, TransferOptions{Size: 4096}, 2},
		{100_001, TransferOptions{Size: 1000, Window: 3}, 101},
		{100_001, TransferOptions{Size: 1000, Window: 1000}, 101}, // bounded by the 40 entries: two control frames
		{1000_000, TransferOptions{Size: 333, Window: 33}, 3004},
	} {
		for name, op := range map[string]func(context.Context, *QP, Local, Remote, TransferOptions) (Counts, error){
			"put": Put, "get": Get} {
			t.Run(fmt.Sprintf("%s %d by %d", name, tc.n, tc.o.Size), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					a, b, peer := pair(t)
					from, to := a, b
					if name == "get" {
						from, to = b, a
						a.nic.buffers, b.nic.buffers = b.nic.buffers, a.nic.buffers
					}
					progress := uint64(0)
					tc.o.Progress = func(done uint64) { progress = done }
					remote := testkit.Must(peer.MR.Part(64, tc.n))(t)
					c, err := op(t.Context(), a.qp, a.mr.Part(4, tc.n), remote, tc.o)
					if err != nil || c != (Counts{tc.posted, tc.posted, tc.n}) || progress != tc.n {
						t.Fatalf("%+v, %v; progress %d", c, err, progress)
					}
					if name == "put" {
						same(t, from, to, 4, 64, int(tc.n))
					} else {
						same(t, from, to, 64, 4, int(tc.n))
					}
					closeAll(t, a, b)
				})
			})
		}
	}
}

// closeAll closes the ends' devices and checks that nothing is left on the NICs.
func closeAll(t *testing.T, ends ...*end) {
	t.Helper()
	for _, e := range ends {
		testkit.NoError(t, e.d.Close())
		testkit.NoError(t, e.d.Close())
		if !e.nic.empty() {
			t.Error("something is left on the NIC")
		}
		testkit.ErrorIs(t, testkit.Err(e.d.AllocPD()), net.ErrClosed)
	}
}

func TestPutTellsThePeer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b, peer := pair(t)
		testkit.Must(b.qp.PostRecv(t.Context(), WR{ID: 5}, WR{ID: 6}))(t)
		var wg sync.WaitGroup
		wg.Go(func() {
			wcs, err := b.cq.Wait(t.Context())
			if err != nil || len(wcs) != 1 || wcs[0].ID != 5 || !wcs[0].HasImm || wcs[0].Imm != 77 || Err(wcs[0]) != nil {
				t.Errorf("%+v, %v", wcs, err)
				return
			}
			same(t, a, b, 0, 0, 10_000)
		})
		o := TransferOptions{Size: 1000, Notify: true, Imm: 77}
		c, err := Put(t.Context(), a.qp, a.mr.Part(0, 10_000), peer.MR, o)
		if err != nil || c.Completed != 10 {
			t.Errorf("%+v, %v", c, err)
		}
		wg.Wait()
		c, err = Put(t.Context(), a.qp, a.mr.Part(0, 0), peer.MR, o)
		if err != nil || c.Completed != 1 || c.Bytes != 0 {
			t.Errorf("%+v, %v", c, err)
		}
		wcs, err := b.cq.Wait(t.Context())
		if err != nil || len(wcs) != 1 || wcs[0].ID != 6 || wcs[0].Len != 0 {
			t.Errorf("%+v, %v", wcs, err)
		}
		closeAll(t, a, b)
	})
}

// TestTransfersShareAQueue runs two transfers on each of two queue pairs that share a send CQ, while the program waits
// for receives on that CQ.
func TestTransfersShareAQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b, peer := pair(t)
		second := func(e *end) *end {
			o := *e
			o.cq = testkit.Must(e.d.NewCQ(200))(t)
			o.qp = testkit.Must(e.pd.NewQP(QPConfig{SendCQ: e.cq, RecvCQ: o.cq, MaxSend: 8, MaxRecv: 8}))(t)
			return &o
		}
		a2, b2 := second(a), second(b)
		_, _, errA, errB := exchangeOver(t, a2, b2)
		testkit.OK(t, errors.Join(errA, errB))
		testkit.Must(a.qp.PostRecv(t.Context(), WR{ID: 1}, WR{ID: 2}))(t)
		var wg sync.WaitGroup
		for i := range uint64(4) {
			qp := a.qp
			if i%2 == 1 {
				qp = a2.qp
			}
			wg.Go(func() {
				remote, err := peer.MR.Part(i*200_000, 200_000)
				if err == nil {
					_, err = Put(t.Context(), qp, a.mr.Part(i*200_000, 200_000), remote, TransferOptions{Size: 1000, Window: 7})
				}
				testkit.NoError(t, err)
			})
		}
		wg.Go(func() {
			for n := 0; n < 2; {
				wcs, err := a.cq.Wait(t.Context())
				for _, w := range wcs {
					n++
					if w.ID != uint64(n) || w.Op != control.WRRecv {
						t.Errorf("the program gets %+v", w)
					}
				}
				if err != nil {
					t.Error(err)
					return
				}
			}
		})
		for range 2 {
			wr := WR{ID: 9, Op: control.WRSend, Flags: control.WRSignaled}
			testkit.Must(b.qp.Post(t.Context(), wr))(t)
		}
		wg.Wait()
		same(t, a, b, 0, 0, 800_000)
		closeAll(t, a, b)
	})
}

func TestTransferFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b, peer := pair(t)
		a2, b2 := *a, *b
		for _, e := range []*end{&a2, &b2} {
			e.qp = testkit.Must(e.pd.NewQP(QPConfig{SendCQ: e.cq, RecvCQ: e.cq, MaxSend: 8, MaxRecv: 8}))(t)
		}
		_, _, errA, errB := exchangeOver(t, &a2, &b2)
		testkit.OK(t, errors.Join(errA, errB))
		short := testkit.Must(b.pd.RegisterBuffer(1, 0, 5500, RemoteWrite))(t).Remote()
		short.Len = 1 << 20 // longer than the peer's memory
		c, err := Put(t.Context(), a.qp, a.mr.Part(0, 20_000), short, TransferOptions{Size: 1000, Window: 8})
		failed := (*WCError)(nil)
		if !errors.As(err, &failed) || failed.WC.Status != control.WCRemoteAccess || c.Completed != 5 || c.Bytes != 5000 {
			t.Fatalf("%+v, %v", c, err)
		}
		testkit.ErrorSays(t, err, "bytes 5000 to 6000", fmt.Sprint("queue pair ", a.qp.Number), "WRITE",
			"what the peer has offered")
		s := testkit.Must(a.qp.Status(t.Context()))(t)
		if s.State != control.QPError || s.Cause != control.WCRemoteAccess || s.Sends != 0 {
			t.Errorf("%+v", s)
		}
		c, err = Put(t.Context(), a.qp, a.mr.Part(0, 10), peer.MR, TransferOptions{})
		if !errors.As(err, &failed) || failed.WC.Status != control.WCFlushed || c.Completed != 0 {
			t.Errorf("on a queue pair that failed: %+v, %v", c, err)
		}
		for name, r := range map[string]Remote{"key": {1, 0, 100}, "range": {peer.MR.Key, 1<<20 - 99, 100}} {
			for _, op := range []control.WROp{control.WRWrite, control.WRRead} {
				n := testkit.Must(a.pd.NewQP(QPConfig{SendCQ: a.cq, RecvCQ: a.cq, MaxSend: 8}))(t)
				m := testkit.Must(b.pd.NewQP(QPConfig{SendCQ: b.cq, RecvCQ: b.cq, MaxSend: 8}))(t)
				x, y := *a, *b
				x.qp, y.qp = n, m
				_, _, errA, errB := exchangeOver(t, &x, &y)
				testkit.OK(t, errors.Join(errA, errB))
				_, err := newTransfer(t.Context(), n, a.mr.Part(0, 100), r, op, TransferOptions{})
				if !errors.As(err, &failed) || failed.WC.Status != control.WCRemoteAccess {
					t.Errorf("%s, %s: %v", name, opName(op), err)
				}
				testkit.NoError(t, errors.Join(n.Close(), m.Close()))
			}
		}
		_, err = Put(t.Context(), a2.qp, a.mr.Part(0, 5000), peer.MR, TransferOptions{})
		testkit.NoError(t, err)
		same(t, a, b, 0, 0, 5000)
		closeAll(t, a, b)
	})
}

func TestBadTransfers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b, peer := pair(t)
		before := a.nic.d.Stats().Requests
		ctx := t.Context()
		for name, err := range map[string]error{
			"past the MR":     testkit.Err(Put(ctx, a.qp, a.mr.Part(1<<20-9, 10), peer.MR, TransferOptions{})),
			"offset past it":  testkit.Err(Put(ctx, a.qp, a.mr.Part(1<<20+1, 0), peer.MR, TransferOptions{})),
			"wrap":            testkit.Err(Put(ctx, a.qp, a.mr.Part(10, 1<<64-1), peer.MR, TransferOptions{})),
			"offset wraps":    testkit.Err(Put(ctx, a.qp, a.mr.Part(1<<64-5, 10), peer.MR, TransferOptions{})),
			"no MR":           testkit.Err(Put(ctx, a.qp, Local{}, peer.MR, TransferOptions{})),
			"peer's too long": testkit.Err(Get(ctx, a.qp, a.mr.Part(0, 10), peer.MR, TransferOptions{})),
			"peer's too short": testkit.Err(Put(ctx, a.qp, a.mr.Part(0, 10), Remote{Key: 1, Len: 9},
				TransferOptions{})),
			"window":    testkit.Err(Put(ctx, a.qp, a.mr.Part(0, 10), peer.MR, TransferOptions{Window: -1})),
			"told READ": testkit.Err(Get(ctx, a.qp, a.mr.Part(0, 10), peer.MR, TransferOptions{Notify: true})),
			"part":      testkit.Err(peer.MR.Part(1<<20, 1)),
			"part wrap": testkit.Err(peer.MR.Part(2, 1<<64-1)),
			"id":        testkit.Err(a.qp.Post(ctx, WR{ID: 1 << 63, Op: control.WRSend})),
			"recv's id": testkit.Err(a.qp.PostRecv(ctx, WR{ID: 1 << 63})),
			"no recv":   testkit.Err(a.qp.PostRecv(ctx, WR{Op: control.WRSend})),
			"no CQ":     testkit.Err(a.pd.NewQP(QPConfig{SendCQ: a.cq, MaxSend: 1})),
			"other CQ":  testkit.Err(a.pd.NewQP(QPConfig{SendCQ: a.cq, RecvCQ: b.cq, MaxSend: 1})),
			"no sends":  testkit.Err(a.pd.NewQP(QPConfig{SendCQ: a.cq, RecvCQ: a.cq, MaxRecv: 1})),
			"no depth":  testkit.Err(a.d.NewCQ(0)),
			"places":    testkit.Err(a.pd.NewQP(QPConfig{SendCQ: a.cq, RecvCQ: a.cq, MaxSend: 1, MaxRecv: 257})),
			"no range":  testkit.Err(a.pd.RegisterGuest([]Range{{IOVA: 5}}, 0, 0)),
			"ranges": testkit.Err(a.pd.RegisterGuest([]Range{{Len: 1 << 63}, {Len: 1 << 63}}, 0,
				0)),
		} {
			testkit.ErrorIs(t, err, syscall.EINVAL, "%s", name)
		}
		if n := a.nic.d.Stats().Requests; n != before {
			t.Errorf("the NIC was asked %d times", n-before)
		}
		closeAll(t, a, b)
	})
}

func TestGuestMemory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b, peer := pair(t)
		var ranges []Range
		for i := range uint64(200) {
			ranges = append(ranges, Range{IOVA: (199 - i) * 4096, Len: 1000 + i})
		}
		mr := testkit.Must(a.pd.RegisterGuest(ranges, 1<<40, LocalWrite))(t)
		total := uint64(200*1000 + 199*200/2)
		if mr.Len != total || mr.VA != 1<<40 {
			t.Fatalf("%+v", mr)
		}
		var want []byte
		for i, r := range ranges {
			for j := range r.Len {
				a.nic.guest[r.IOVA+j] = byte(i*31 + int(j))
			}
			want = append(want, a.nic.guest[r.IOVA:][:r.Len]...)
		}
		_, err := Put(t.Context(), a.qp, mr.Part(0, total), peer.MR, TransferOptions{Size: 7777})
		testkit.OK(t, err)
		if !bytes.Equal(b.nic.buffers[1][:total], want) {
			t.Error("other bytes than were sent")
		}
		a.nic.set(func() { a.nic.noMore = true })
		mrs := len(a.nic.mrs)
		testkit.ErrorIs(t, testkit.Err(a.pd.RegisterGuest(ranges, 0, 0)), syscall.ENOSPC)
		if len(a.nic.mrs) != mrs {
			t.Error("an MR without all its ranges stays")
		}
		closeAll(t, a, b)
	})
}

// TestTransferWaitsForPlaces fills the queue before a transfer, first nearly, then completely.
func TestTransferWaitsForPlaces(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b, peer := pair(t)
		a.nic.set(func() { a.nic.hold = true })
		fill := make([]WR, 38)
		for i := range fill {
			fill[i] = WR{ID: uint64(i), Op: control.WRWrite}
		}
		if n, err := a.qp.Post(t.Context(), fill...); n != 38 || err != nil {
			t.Fatal(n, err)
		}
		var wg sync.WaitGroup
		wg.Go(func() {
			c, err := Put(t.Context(), a.qp, a.mr.Part(0, 10_000), peer.MR, TransferOptions{Size: 100, Window: 33})
			if err != nil || c.Completed != 100 {
				t.Errorf("with two places: %+v, %v", c, err)
			}
		})
		synctest.Wait()
		if s := testkit.Must(a.qp.Status(t.Context()))(t); s.Sends != 40 {
			t.Errorf("not all places are used: %+v", s)
		}
		a.nic.release()
		wg.Wait()
		a.nic.set(func() { a.nic.hold = true })
		testkit.Must(a.qp.Post(t.Context(), append(fill, WR{}, WR{})[:38]...))(t)
		extra := []WR{{ID: 1, Op: control.WRWrite}, {ID: 2, Op: control.WRWrite}}
		testkit.Must(a.qp.Post(t.Context(), extra...))(t)
		c, err := Put(t.Context(), a.qp, a.mr.Part(0, 10), peer.MR, TransferOptions{})
		if !errors.Is(err, ErrFull) || !errors.Is(err, syscall.ENOSPC) || c.Posted != 0 {
			t.Errorf("without a place: %+v, %v", c, err)
		}
		a.nic.release()
		closeAll(t, a, b)
	})
}

// TestTransferLosesItsPlaces uses the entries of three completed work requests for others.
func TestTransferLosesItsPlaces(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b, peer := pair(t)
		a.nic.set(func() { a.nic.hold = true })
		var wg sync.WaitGroup
		wg.Go(func() {
			c, err := Put(t.Context(), a.qp, a.mr.Part(0, 10_000), peer.MR, TransferOptions{Size: 100, Window: 4})
			if err != nil || c.Completed != 100 {
				t.Errorf("%+v, %v", c, err)
			}
		})
		synctest.Wait()
		testkit.Must(a.qp.Post(t.Context(), slices.Repeat([]WR{{Op: control.WRWrite}}, 30)...))(t)
		testkit.Must(a.qp.Post(t.Context(), slices.Repeat([]WR{{Op: control.WRWrite}}, 6)...))(t)
		for range 3 {
			a.nic.set(func() {
				a.nic.steps = 1
				a.nic.f.run()
				q := a.nic.qps[a.qp.Number]
				q.sends = append(q.sends, WR{Op: control.WRWrite})
				a.nic.cqs[q.SendCQ].used++
			})
			synctest.Wait()
		}
		if s := testkit.Must(a.qp.Status(t.Context()))(t); s.Sends != 40 {
			t.Errorf("%+v", s)
		}
		a.nic.release()
		wg.Wait()
		closeAll(t, a, b)
	})
}

func TestGivenUpTransfer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b, peer := pair(t)
		a.nic.set(func() { a.nic.hold = true })
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		put := func(ctx context.Context, want error) {
			wg.Go(func() {
				_, err := Put(ctx, a.qp, a.mr.Part(0, 10_000), peer.MR, TransferOptions{Size: 1000, Window: 4})
				testkit.ErrorIs(t, err, want)
				if failed := (*WCError)(nil); errors.As(err, &failed) {
					t.Errorf("%v says that nothing is under way", err)
				}
			})
		}
		put(ctx, context.Canceled)
		synctest.Wait()
		cancel()
		wg.Wait()
		a.nic.release()
		if wcs, err := a.cq.Poll(t.Context(), 100); len(wcs) != 0 || err != nil {
			t.Errorf("the program gets completions of a transfer: %+v, %v", wcs, err)
		}
		_, err := Put(t.Context(), a.qp, a.mr.Part(0, 10_000), peer.MR, TransferOptions{})
		testkit.NoError(t, err)
		a.nic.set(func() { a.nic.hold = true })
		put(t.Context(), net.ErrClosed)
		put(t.Context(), net.ErrClosed) // waits for the other transfer
		synctest.Wait()
		testkit.NoError(t, a.qp.Close())
		wg.Wait()
		closeAll(t, a, b)
	})
}

func TestNICThatLies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b, peer := pair(t)
		a.nic.set(func() { a.nic.wrongOrder = true })
		_, err := Put(t.Context(), a.qp, a.mr.Part(0, 10_000), peer.MR, TransferOptions{Size: 1000})
		testkit.ErrorIs(t, err, syscall.EPROTO)
		closeAll(t, a, b)
	})
}

func TestEachStatusHasWords(t *testing.T) {
	seen := map[string]bool{}
	for s := range control.WCStatus(255) {
		err := Err(WC{ID: 3, QPN: 4, Status: s, Op: control.WRRead})
		if (err == nil) != (s == control.WCSuccess) {
			t.Fatalf("status %d: %v", s, err)
		}
		if err == nil || strings.Contains(err.Error(), fmt.Sprintf("status %d", s)) {
			continue
		}
		seen[err.Error()] = true
	}
	if len(seen) != 10 || len(meaning) != 10 {
		t.Errorf("%d statuses have words", len(seen))
	}
}
