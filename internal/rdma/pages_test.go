package rdma

import (
	"bytes"
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"vnic.dev/vnic/internal/control"
	"vnic.dev/vnic/internal/testkit"
)

// demand makes a pair in which b has an MR on demand of 64 pages, from the middle of the first page on, and a server
// for it, which runs until stop. stop returns Serve's error.
func demand(t *testing.T, workers int, find PageFunc) (a, b *end, s *PageServer, mr *MR, stop func() error) {
	t.Helper()
	a, b, _ = pair(t)
	s = testkit.Must(NewPageServer(b.d, find, workers))(t)
	mr = testkit.Must(s.Register(b.pd, OnDemand{Region: 9, Off: 2048, Len: 64*4096 - 2048, VA: 1 << 30,
		Access: everyAccess}))(t)
	ctx, cancel := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- s.Serve(ctx) }()
	synctest.Wait() // Serve receives notifies after this
	return a, b, s, mr, func() error {
		cancel()
		return <-served
	}
}

func straight(_ context.Context, r control.PageRequest) (a control.PageAnswer) {
	for i := range uint64(r.Count) {
		a.Entries = append(a.Entries, (r.First+i)*4096)
	}
	return a
}

func TestPagesOnDemand(t *testing.T) {
	for _, lost := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			var calls atomic.Int32
			a, b, s, mr, stop := demand(t, 0, func(ctx context.Context, r control.PageRequest) control.PageAnswer {
				calls.Add(1)
				if r.Region != 9 || !r.Write {
					t.Errorf("%+v", r)
				}
				return straight(ctx, r)
			})
			b.nic.set(func() { b.nic.lose = lost })
			_, err := Put(t.Context(), a.qp, a.mr.Part(0, mr.Len), mr.Remote(), TransferOptions{Size: 10_000})
			testkit.OK(t, err)
			if !bytes.Equal(b.nic.guest[2048:64*4096], a.nic.buffers[1][:mr.Len]) {
				t.Error("other bytes than were sent")
			}
			testkit.NoError(t, stop())
			st := s.Stats()
			if st.Requests != 64 || st.Answered != 64 || (st.Listed == 64) != lost || calls.Load() != 64 {
				t.Errorf("lost %v: %+v, %d calls", lost, st, calls.Load())
			}
			if c := testkit.Must(mr.PageCounts(t.Context()))(t); c.Answers != 64 {
				t.Errorf("%+v", c)
			}
			testkit.NoError(t, mr.Close())
			if len(s.keys) != 0 {
				t.Error("a closed MR is served")
			}
			closeAll(t, a, b)
		})
	}
}

func TestPagesThatAreNotToBeHad(t *testing.T) {
	for name, find := range map[string]PageFunc{
		"errno": func(context.Context, control.PageRequest) control.PageAnswer { return control.PageAnswer{Errno: 14} },
		"none":  func(context.Context, control.PageRequest) control.PageAnswer { return control.PageAnswer{} },
		"too many": func(context.Context, control.PageRequest) control.PageAnswer {
			return control.PageAnswer{Entries: make([]uint64, 2)}
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a, b, s, mr, stop := demand(t, 0, find)
				_, err := Put(t.Context(), a.qp, a.mr.Part(0, 5), mr.Remote(), TransferOptions{})
				failed := (*WCError)(nil)
				if !errors.As(err, &failed) || failed.WC.Status != control.WCRemoteOperation {
					t.Error(err)
				}
				testkit.NoError(t, stop())
				if st := s.Stats(); st.Refused != 1 || st.Answered != 0 {
					t.Errorf("%+v", st)
				}
				closeAll(t, a, b)
			})
		})
	}
}

func TestPageWorkersAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		now, most := 0, 0
		a, b, s, mr, stop := demand(t, 3, func(ctx context.Context, r control.PageRequest) control.PageAnswer {
			mu.Lock()
			now++
			most = max(most, now)
			mu.Unlock()
			time.Sleep(time.Millisecond) // in synctest's time
			mu.Lock()
			now--
			mu.Unlock()
			return straight(ctx, r)
		})
		for i := range uint32(10) {
			b.nic.set(func() {
				r := &control.PageRequest{ID: 1000 + i, Key: mr.Key, Region: 9, Count: 2, First: uint64(2 * i)}
				b.nic.faults[r.ID] = r
				b.nic.client.Receive(b.nic.d.NotifyPages(nil, [6]byte{}, r))
			})
		}
		other := control.PageRequest{ID: 2000, Key: mr.Key + 1, Count: 1} // for an MR that the server does not have
		b.nic.client.Receive(b.nic.d.NotifyPages(nil, [6]byte{}, &other))
		time.Sleep(time.Second)
		if st := s.Stats(); most != 3 || st.Requests != 10 || st.Answered != 10 {
			t.Errorf("%d at one time, %+v", most, st)
		}
		gone := control.PageRequest{ID: 3000, Key: mr.Key, Count: 1}
		b.nic.client.Receive(b.nic.d.NotifyPages(nil, [6]byte{}, &gone))
		time.Sleep(time.Second)
		if st := s.Stats(); st.Late != 1 {
			t.Errorf("%+v", st)
		}
		testkit.NoError(t, stop())
		closeAll(t, a, b)
	})
}

// TestFullPageQueue makes more requests than the queue holds: when the worker goes on, the server gets the others from
// the NIC's list.
func TestFullPageQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		open := make(chan struct{})
		a, b, s, mr, stop := demand(t, 1, func(ctx context.Context, r control.PageRequest) control.PageAnswer {
			<-open
			return straight(ctx, r)
		})
		const n = pageQueue + 50
		b.nic.set(func() {
			for i := range uint32(n) {
				r := &control.PageRequest{ID: 1000 + i, Key: mr.Key, Count: 1, First: uint64(i % 60)}
				b.nic.faults[r.ID] = r
			}
		})
		time.Sleep(time.Second)
		if st := s.Stats(); st.Put == 0 || st.Answered != 0 {
			t.Errorf("%+v", st)
		}
		close(open)
		time.Sleep(time.Minute)
		if st := s.Stats(); st.Answered != n || st.Late != 0 {
			t.Errorf("%+v", st)
		}
		testkit.NoError(t, stop())
		closeAll(t, a, b)
	})
}

// TestPageServerThatStops stops Serve during a call of find: the next Serve gets the request.
func TestPageServerThatStops(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		again := atomic.Bool{}
		a, b, s, mr, stop := demand(t, 1, func(ctx context.Context, r control.PageRequest) control.PageAnswer {
			if again.Load() {
				return straight(ctx, r)
			}
			<-ctx.Done()
			return control.PageAnswer{Errno: uint16(syscall.EINTR)}
		})
		var wg sync.WaitGroup
		wg.Go(func() {
			_, err := Put(t.Context(), a.qp, a.mr.Part(0, 5), mr.Remote(), TransferOptions{})
			testkit.NoError(t, err)
		})
		synctest.Wait()
		testkit.NoError(t, stop())
		if b.nic.answers != 0 {
			t.Error("it was answered")
		}
		again.Store(true)
		ctx, cancel := context.WithCancel(t.Context())
		served := make(chan error, 1)
		go func() { served <- s.Serve(ctx) }()
		wg.Wait()
		cancel()
		testkit.NoError(t, <-served)
		closeAll(t, a, b)
	})
}

func TestPageServerIsRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b, s, _, stop := demand(t, 1, straight)
		testkit.ErrorIs(t, testkit.Err(s.Register(a.pd, OnDemand{Len: 1})), syscall.EINVAL)
		testkit.NoError(t, stop())
		a.d.Limits.Flags = 0
		testkit.ErrorIs(t, testkit.Err(NewPageServer(a.d, straight, 0)), syscall.EOPNOTSUPP)
		closeAll(t, a, b)
	})
}
