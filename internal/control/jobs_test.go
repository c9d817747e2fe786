package control

import (
	"context"
	"errors"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"vnic.dev/vnic/internal/testkit"
)

func TestWaitJob(t *testing.T) {
	for _, tc := range []struct {
		name        string
		end, notify time.Duration // after the submission, and after the end; 0: at once, negative: never
		forgotten   bool
		polls       bool
		want        error
	}{
		{name: "notified", end: 20 * time.Millisecond},
		{name: "notified early"},
		{name: "notify lost", end: 20 * time.Millisecond, notify: -1, polls: true},
		{name: "lost early", notify: -1, polls: true},
		{name: "forgotten, told before", notify: firstPoll - 1, forgotten: true},
		{name: "forgotten, told after", notify: firstPoll + lastPoll/2, forgotten: true, polls: true},
		{name: "forgotten, never told", notify: -1, forgotten: true, polls: true, want: syscall.ENOENT},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c, l, p := connect(t, ClientOptions{})
				id := testkit.Must(c.SubmitJob(t.Context(), Job{Op: JobFill}))(t)
				after := func(d time.Duration, do func()) {
					if d > 0 {
						time.AfterFunc(d, do)
					} else if d == 0 {
						do()
					}
				}
				after(tc.end, func() {
					s := p.end(id, 0)
					if tc.forgotten {
						p.mu.Lock()
						delete(p.jobs, id)
						p.mu.Unlock()
					}
					after(tc.notify, func() { l.deliver(l.d.NotifyJob(nil, [6]byte{}, &s)) })
				})
				s, err := c.WaitJob(t.Context(), id)
				good := err == nil && s.ID == id && s.State == JobDone && s.Bytes == 42
				if tc.want == nil && !good || !errors.Is(err, tc.want) {
					t.Fatalf("%+v, %v", s, err)
				}
				if polled := p.count("poll") > 0; polled != tc.polls {
					t.Errorf("polled %d times", p.count("poll"))
				}
			})
		})
	}
}

func TestRunJobCancelsWhenItsContextEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, _, p := connect(t, ClientOptions{})
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if _, err := c.RunJob(ctx, Job{Op: JobFill}); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatal(err)
		}
		if s, _ := p.PollJob(1); s.Errno != uint16(syscall.ECANCELED) {
			t.Fatalf("the job goes on: %+v", s)
		}
		go func() {
			time.Sleep(time.Second) // of synctest's time
			p.end(2, syscall.EFAULT)
		}()
		if _, err := c.RunJob(t.Context(), Job{Op: JobFill}); !errors.Is(err, syscall.EFAULT) {
			t.Fatalf("the job's own error: %v", err)
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		if len(c.jobs.waiters) != 0 {
			t.Fatalf("waiters are left: %v", c.jobs.waiters)
		}
	})
}

func TestRunJobLeavesNoJobThatNobodyKnows(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, l, p := connect(t, ClientOptions{})
		start := time.Now()
		l.drop = func(n int) (bool, bool) { return n > 1 && time.Since(start) < time.Second, false }
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		defer cancel()
		if _, err := c.RunJob(ctx, Job{Op: JobFill}); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatal(err)
		}
		if s, _ := p.PollJob(1); s.Errno != uint16(syscall.ECANCELED) {
			t.Fatalf("the job goes on: %+v", s)
		}
		if _, err := c.RunJob(ctx, Job{Op: JobFill}); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatal(err)
		}
		if _, err := p.PollJob(2); !errors.Is(err, syscall.ENOENT) {
			t.Fatalf("a job was submitted in vain: %v", err)
		}
	})
}

func TestResetEndsWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, l, p := connect(t, ClientOptions{})
		id := testkit.Must(c.SubmitJob(t.Context(), Job{Op: JobFill}))(t)
		time.AfterFunc(time.Millisecond, func() {
			p.mu.Lock()
			p.s = NewState(78, &p.info, [40]byte{})
			p.jobs, p.last = make(map[uint64]*JobStatus), 0
			p.mu.Unlock()
			l.d.Reset()
			c.Hello(t.Context())
		})
		s, err := c.WaitJob(t.Context(), id)
		if err != nil || s.Errno != uint16(syscall.ECANCELED) {
			t.Fatalf("%+v, %v", s, err)
		}
		if id, err = c.SubmitJob(t.Context(), Job{Op: JobFill}); err != nil {
			t.Fatal(err)
		}
		s = p.end(id, 0)
		l.deliver(l.d.NotifyJob(nil, [6]byte{}, &s))
		if s, err = c.WaitJob(t.Context(), id); err != nil || s.Err() != nil {
			t.Fatalf("%+v, %v", s, err)
		}
	})
}
