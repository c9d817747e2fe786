package nic

import (
	"slices"
	"sync/atomic"
	"syscall"
	"testing"

	"vnic.dev/vnic/dma"
	"vnic.dev/vnic/internal/control"
	"vnic.dev/vnic/internal/testkit"
	"vnic.dev/vnic/internal/wire"
	"vnic.dev/vnic/splitter"
)

// postedRx is a receive queue that records how many buffers are returned under each hold of its lock.
type postedRx struct {
	RxBase
	posted  int
	endless bool // the driver posts as many buffers as are returned, at once
	called  func()

	hold  int
	holds []int
	split []bool
}

func (q *postedRx) Lock() {
	q.RxBase.Lock()
	q.hold = 0
}

func (q *postedRx) Unlock() {
	if q.hold > 0 {
		q.holds = append(q.holds, q.hold)
	}
	q.RxBase.Unlock()
}

func (q *postedRx) Put(_ *Mover, f *Frame) Result {
	q.split = append(q.split, f.Split)
	return PutTaken
}

func (q *postedRx) Return(n int) (returned int) {
	n = min(n, q.posted)
	if !q.endless {
		q.posted -= n
	}
	q.hold += n
	return n
}

func (q *postedRx) Flush() (call bool) { return q.hold > 0 }
func (q *postedRx) Call()              { q.called() }
func (q *postedRx) AwaitBuffers() bool { return false }
func (q *postedRx) Buffers() int       { return q.posted }
func (q *postedRx) Stopped(error)      {}

// The port returns at most returnPiece buffers under one hold of a queue's lock. After each hold the port's mu is free,
// and frames still reach the queue, split, and another queue.
//
// Invariant: nic: While a queue's buffers are returned, others wait at most for a part of them.
func TestBuffersAreReturnedInPieces(t *testing.T) {
	const ring = 1 << 15
	for _, c := range []struct {
		name    string
		posted  int
		endless bool
		pieces  int
	}{
		{"none", 0, false, 0}, {"one", 1, false, 1}, {"a piece", 256, false, 1}, {"one more", 257, false, 2},
		{"the largest ring", ring, false, ring / 256}, {"endless", 256, true, ring / 256},
	} {
		t.Run(c.name, func(t *testing.T) {
			q := &postedRx{posted: c.posted, endless: c.endless}
			q.Init(q)
			other := &postedRx{called: func() {}}
			other.Init(other)
			space := dma.NewSpace("a", dma.NewFiles())
			conf := Config{Name: "a", MAC: wire.MAC{2, 0, 0, 0, 0, 1}, MTU: 1500, QueuePairs: 2, HeaderLimit: 256}
			p, err := NewPort(conf, space, []RxQueue{other, q}, new(atomic.Pointer[wire.Limits]))
			testkit.OK(t, err)
			w := wire.NewWorker()
			deliver := func(class splitter.Class) { // UDP goes to q, frames that are not IP to the other queue
				pkt := &wire.Packet{Header: make([]byte, 60)}
				pkt.Meta.Headers = splitter.Headers{Class: class}
				p.Deliver(w, []*wire.Packet{pkt})
				if pkt.Verdict.Kind != wire.Taken {
					t.Fatalf("class %v: %+v", class, pkt.Verdict)
				}
			}
			rss, err := p.RSS()
			testkit.OK(t, err)
			rss.Table = []uint16{1}
			testkit.OK(t, p.SetRSS(rss))
			testkit.OK(t, p.SetSplit(control.Split{Queue: 1, On: true}))
			q.called = func() {
				if !p.mu.TryLock() {
					t.Fatal("the port is locked while buffers are returned")
				}
				p.mu.Unlock()
				deliver(splitter.NotIP)
				deliver(splitter.UDP)
			}

			bound := *p.state()
			testkit.OK(t, p.change(func(s *control.State) error {
				s.Bindings = []control.Binding{{ID: 1, Queues: []uint16{1}}}
				return nil
			}))
			testkit.ErrorIs(t, p.SetSplit(control.Split{Queue: 1}), syscall.EINVAL, "split off on a bound queue")
			testkit.Equal(t, "pieces for a command that is refused", len(q.holds), 0)
			testkit.OK(t, p.change(func(s *control.State) error {
				s.Bindings = bound.Bindings
				return nil
			}))

			testkit.OK(t, p.SetSplit(control.Split{Queue: 1}))
			testkit.Equal(t, "pieces", len(q.holds), c.pieces)
			if n := max(0, slices.Max(append(q.holds, 0))); n > returnPiece {
				t.Errorf("%d buffers were returned under one hold of the lock", n)
			}
			if len(q.split) != c.pieces || slices.Contains(q.split, false) || len(other.split) != c.pieces {
				t.Errorf("frames meanwhile: %d to the queue, split: %v; %d to the other", len(q.split), q.split,
					len(other.split))
			}
			deliver(splitter.UDP)
			if q.split[len(q.split)-1] {
				t.Error("split, now that split is off")
			}
			testkit.OK(t, p.SetSplit(control.Split{Queue: 1}))
			testkit.Equal(t, "pieces once split is off", len(q.holds), c.pieces)
		})
	}
}
