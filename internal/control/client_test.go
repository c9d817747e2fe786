package control

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"vnic.dev/vnic/internal/testkit"
)

// Invariant: control: While the NIC stores a client's session, it handles each request of the
// session at most once, over a link that loses and doubles frames.
func TestEachRequestIsHandledOnce(t *testing.T) {
	for seed := range uint64(8) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c, l, p := connect(t, ClientOptions{Timeout: time.Hour})
				r := rand.New(rand.NewPCG(seed, 1))
				l.drop = func(int) (bool, bool) { x := r.IntN(100); return x < 30, x >= 80 }
				var wg sync.WaitGroup
				for i := range 90 {
					wg.Go(func() {
						if _, err := c.AddFlow(t.Context(), FlowRule{Proto: 17, DstPort: uint16(i + 1)}); err != nil {
							t.Errorf("rule %d: %v", i, err) // EEXIST: the NIC has handled the request twice
						}
					})
				}
				wg.Wait()
				if n := p.count("flow"); n != 90 {
					t.Errorf("handled %d times", n)
				}
				if s := c.Stats(); s.Requests != 90 || s.Repeats == 0 || s.Replies != 90 {
					t.Errorf("%+v", s)
				}
				if s := l.d.Stats(); s.Malformed != 0 || s.Failed != 0 || s.Repeats == 0 {
					t.Errorf("%+v", s)
				}
			})
		})
	}
}

func TestNoAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, l, _ := connect(t, ClientOptions{Timeout: 5 * time.Second})
		l.drop = func(int) (bool, bool) { return true, false }
		start := time.Now()
		_, err := c.Hello(t.Context())
		if !errors.Is(err, ErrNoAnswer) || !errors.Is(err, syscall.ETIMEDOUT) || time.Since(start) != 5*time.Second {
			t.Fatalf("%v after %v", err, time.Since(start))
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err = c.Hello(ctx); !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, ErrNoAnswer) {
			t.Fatalf("the caller's deadline: %v", err)
		}
		l.drop = nil
		if _, err = c.Hello(t.Context()); err != nil {
			t.Fatalf("afterwards: %v", err)
		}
	})
}

func TestCloseEndsCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, l, _ := connect(t, ClientOptions{})
		l.drop = func(int) (bool, bool) { return true, false }
		errs := make(chan error, 100)
		for range cap(errs) {
			go func() { _, err := c.Hello(t.Context()); errs <- err }()
		}
		synctest.Wait()
		c.Close()
		for range cap(errs) {
			if err := <-errs; !errors.Is(err, net.ErrClosed) {
				t.Fatal(err)
			}
		}
	})
}

func TestClosedSender(t *testing.T) {
	c, l, _ := connect(t, ClientOptions{})
	l.closed = true
	if _, err := c.Hello(t.Context()); !errors.Is(err, net.ErrClosed) {
		t.Fatal(err)
	}
}

func TestSlowRequestStaysInWindow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, _, p := connect(t, ClientOptions{Timeout: time.Hour})
		p.block = make(chan struct{})
		slow := make(chan error, 1)
		go func() { slow <- c.SetSplit(t.Context(), Split{Queue: 1, On: true}) }()
		synctest.Wait()
		var wg sync.WaitGroup
		for range 300 {
			wg.Go(func() {
				if _, err := c.Hello(t.Context()); err != nil {
					t.Error(err)
				}
			})
		}
		synctest.Wait()
		time.Sleep(10 * time.Second) // of synctest's time
		close(p.block)
		testkit.OK(t, <-slow)
		wg.Wait()
		if p.count("split") != 1 || p.count("blocked") != 1 {
			t.Fatalf("handled %d times", p.count("split"))
		}
	})
}

func TestNICOfAnotherVersionIsNamed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, l, _ := connect(t, ClientOptions{Timeout: time.Hour, OnGeneration: func(uint32, uint32) {
			t.Error("the generation of another version's frame was used")
		}})
		var lost atomic.Bool
		l.drop = func(int) (bool, bool) { return lost.Load(), false }
		testkit.OK(t, testkit.Err(c.Hello(t.Context())))
		lost.Store(true)
		for _, stray := range []func(f *Frame){func(f *Frame) { f.Session++ }, func(f *Frame) { f.Kind = KindNotify }, nil} {
			done := make(chan error, 1)
			go func() { _, err := c.Hello(t.Context()); done <- err }()
			synctest.Wait()
			c.mu.Lock()
			f := Frame{Src: MAC, Header: Header{Kind: KindReply, Class: ClassInfo, Command: InfoHello, Session: c.session,
				Seq: c.seq - 1, Generation: 99}, Data: []byte("protocol version 1, this end has 2")}
			c.mu.Unlock()
			deliver := func(version byte) {
				b := f.Append(nil)
				b[EthernetLen] = version
				c.Receive(b)
				synctest.Wait()
			}
			if stray != nil {
				stray(&f)
				deliver(2)
				testkit.Equal(t, "answers", len(done), 0)
				lost.Store(false)
				testkit.OK(t, <-done)
				lost.Store(true)
				continue
			}
			deliver(2)
			err := <-done
			testkit.ErrorIs(t, err, syscall.EPROTONOSUPPORT)
			testkit.Equal(t, "error", err.Error(), "the NIC has version 2 of the control protocol, this driver has 1: "+
				"use the same vnic in the guest and on its host")
		}
		lost.Store(false)
		testkit.OK(t, testkit.Err(c.Hello(t.Context())))
	})
}

func TestStrangeFramesAreNotAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, l, p := connect(t, ClientOptions{Timeout: time.Second})
		l.drop = func(int) (bool, bool) { return true, false }
		done := make(chan error, 1)
		go func() { _, err := c.Hello(t.Context()); done <- err }()
		synctest.Wait()
		good := Frame{Src: MAC, Data: enc(p.info)}
		good.Kind, good.Class, good.Command, good.Session, good.Seq, good.Generation = KindReply, ClassInfo, InfoHello,
			c.session, 1, 5
		strange := []func(f *Frame){
			func(f *Frame) { f.Src[0]++ },
			func(f *Frame) { f.Session++ },
			func(f *Frame) { f.Seq++ },
			func(f *Frame) { f.Class++ },
			func(f *Frame) { f.Command++ },
			func(f *Frame) { f.Kind = KindRequest },
			func(f *Frame) { f.Kind = KindNotify },
			func(f *Frame) { f.Kind, f.Class, f.Command = KindNotify, ClassJob, JobCompleted },
			func(f *Frame) { f.Kind = 9 },
		}
		for _, change := range strange {
			f := good
			change(&f)
			if !c.Receive(f.Append(nil)) {
				t.Fatal("a control frame was given back to the driver")
			}
		}
		if c.Receive(make([]byte, 60)) || c.Receive(nil) {
			t.Fatal("an ordinary frame was taken")
		}
		if s := c.Stats(); s.Strays != uint64(len(strange)) || s.Replies != 0 || c.Generation() != 0 {
			t.Fatalf("%+v", s)
		}
		c.Receive(good.Append(nil))
		testkit.OK(t, <-done)
	})
}
