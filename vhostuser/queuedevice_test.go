package vhostuser

import (
	"errors"
	"log/slog"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/internal/testkit"
)

// fakeQueue is a Queue with a number of pending chains.
type fakeQueue struct {
	pending   atomic.Int64
	endless   atomic.Bool
	fail      error
	taken     atomic.Uint32
	closed    atomic.Bool
	processed chan struct{}
}

func (q *fakeQueue) Pending() bool { return q.pending.Load() > 0 || q.endless.Load() }

func (q *fakeQueue) Process() error {
	q.pending.Add(-1)
	q.taken.Add(1)
	select {
	case q.processed <- struct{}{}:
	default: // the channel is full: an endless queue may send more tokens than the test reads
	}
	return q.fail
}

func (q *fakeQueue) Publish() bool { return true }
func (q *fakeQueue) Base() uint32  { return uint32(uint16(q.taken.Load())) } // a split ring's has 16 bits
func (q *fakeQueue) Close()        { q.closed.Store(true) }

type queueHost struct {
	*link
	t      *testing.T
	queues [2]*fakeQueue
	opened chan Vring
	kick   int
	call   int
	mem    *guest
}

func newQueueHost(t *testing.T) *queueHost {
	t.Helper()
	testkit.CheckFDs(t)
	q := &queueHost{t: t, opened: make(chan Vring, 8)}
	for i := range q.queues {
		q.queues[i] = &fakeQueue{processed: make(chan struct{}, 100)}
	}
	h := &host{recorder: newRecorder(t), t: t}
	dev := &QueueDevice{Queues: 2, Log: slog.New(slog.DiscardHandler), Open: func(v Vring) (Queue, error) {
		q.opened <- v
		return q.queues[v.Index], nil
	}}
	h.back = NewBackend(dev, h.Space, h.Log())
	q.link, q.mem = h.connect(), newGuest(t)
	_, _, err := q.Negotiate(^uint64(0), ^uint64(0))
	q.must(err)
	q.must(q.AddMemory(q.mem.fd, 0, userBase, guestSize, 0))
	q.kick, q.call = eventfd(t), eventfd(t)
	q.setup(0, q.kick, q.call)
	t.Cleanup(func() {
		q.must(q.HangUp())
		for _, f := range q.queues {
			if f.taken.Load() > 0 && !f.closed.Load() {
				t.Error("a queue was not closed")
			}
		}
	})
	return q
}

func (q *queueHost) must(err error) {
	q.t.Helper()
	testkit.OK(q.t, err)
}

func (q *queueHost) vring(i, kick, call int) VringSetup {
	addr := uint64(userBase + i*0x10000)
	return VringSetup{Index: i, Size: 4, Desc: addr, Avail: addr + 0x1000, Used: addr + 0x2000, Kick: kick, Call: call}
}

func (q *queueHost) setup(i, kick, call int) {
	q.t.Helper()
	q.must(q.SetupVring(q.vring(i, kick, call)))
}

func (q *queueHost) signal(fd int) {
	q.t.Helper()
	_, err := unix.Write(fd, []byte{1, 0, 0, 0, 0, 0, 0, 0})
	q.must(err)
}

func (q *queueHost) serveOne(i, kick int) {
	q.t.Helper()
	q.queues[i].pending.Add(1)
	q.signal(kick)
	<-q.queues[i].processed
}

func (q *queueHost) waitCall(fd int) {
	q.t.Helper()
	p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	for {
		if n, err := unix.Poll(p, 10000); errors.Is(err, unix.EINTR) {
			continue
		} else if err != nil || n != 1 {
			q.t.Fatalf("no call: %d, %v", n, err)
		}
		_, err := unix.Read(fd, make([]byte, 8))
		q.must(err)
		return
	}
}

func TestQueueDeviceWorksAtItsKickWhileEnabled(t *testing.T) {
	q := newQueueHost(t)
	f := q.queues[0]
	f.pending.Add(2)
	q.must(q.SetEnable(0, true))
	// The answer to GET_STATUS comes after all earlier requests were handled.
	q.must(q.SetStatus(1))
	if s, err := q.GetStatus(); err != nil || s != 1 {
		t.Fatalf("status %d, %v", s, err)
	}
	q.signal(q.kick)
	<-f.processed
	<-f.processed
	q.waitCall(q.call)

	q.must(q.SetEnable(0, false))
	f.pending.Add(1)
	q.signal(q.kick)
	q.must(q.SetEnable(0, true)) // no kick after it
	<-f.processed
	q.waitCall(q.call)
	q.wantBase(t, 0, 3)
	if v := <-q.opened; v.Running || v.Size != 4 || v.Desc != 0 {
		t.Errorf("%+v", v)
	}
}

// A queue waits for its first kick.
func TestQueueDeviceWaitsForItsFirstKick(t *testing.T) {
	q := newQueueHost(t)
	q.queues[0].pending.Add(1)
	q.must(q.SetEnable(0, true))
	q.wantBase(t, 0, 0)
	q.setup(0, q.kick, q.call)
	q.signal(q.kick)
	<-q.queues[0].processed
}

// After a change of a running ring, the queue goes on without another kick.
func TestQueueDeviceGoesOnAfterAChange(t *testing.T) {
	q := newQueueHost(t)
	q.must(q.SetEnable(0, true))
	q.serveOne(0, q.kick)
	q.queues[0].pending.Add(1)
	addr := uint64(userBase + 0x8000)
	q.must(q.SetVringAddr(0, addr, addr+0x1000, addr+0x2000))
	<-q.queues[0].processed
}

func TestQueueDeviceFiresACallThatIsReplaced(t *testing.T) {
	q := newQueueHost(t)
	for range 3 {
		call := eventfd(t)
		q.must(q.SetVringCall(0, call))
		q.waitCall(call)
	}
	q.must(q.SetVringCall(0, -1))
	q.must(q.SetEnable(0, true))
	q.serveOne(0, q.kick) // without a call eventfd nothing blocks
}

// Neither a call eventfd whose counter is full nor an endless ring block Serve.
//
// Invariant: vhostuser: Whatever the peer does to its rings and eventfds, except making an eventfd blocking
// while it is used, a queue of a QueueDevice can be stopped.
func TestQueueDeviceStopsWhateverThePeerDoes(t *testing.T) {
	q := newQueueHost(t)
	full := eventfd(t)
	_, err := unix.Write(full, []byte{0xfe, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff})
	q.must(err)
	q.must(q.SetVringCall(0, full))
	q.must(q.SetEnable(0, true))
	q.queues[0].pending.Add(1)
	q.signal(q.kick)
	_, err = q.GetVringBase(0) // the worker blocks in a call, or soon would
	q.must(err)

	q.queues[1].endless.Store(true)
	kick := eventfd(t)
	q.setup(1, kick, -1)
	q.must(q.SetEnable(1, true))
	q.signal(kick)
	<-q.queues[1].processed
	q.must(q.SetEnable(1, false))
	q.must(q.SetEnable(1, true))
	_, err = q.GetVringBase(1)
	q.must(err)
}

// Invariant: vhostuser: Whatever the peer does to its rings and eventfds, except making an eventfd
// blocking while it is used, a queue of a QueueDevice can be stopped.
func TestQueueDeviceEndsAQueueThatFails(t *testing.T) {
	q := newQueueHost(t)
	q.queues[0].fail = errors.New("bad chain")
	q.must(q.SetEnable(0, true))
	q.queues[0].pending.Add(2)
	q.signal(q.kick)
	<-q.queues[0].processed
	q.waitCall(q.call) // chains committed before the error are published
	kick := eventfd(t)
	q.setup(1, kick, -1)
	q.must(q.SetEnable(1, true))
	q.serveOne(1, kick)
	q.wantBase(t, 0, 1)
}

func TestQueueDeviceRefusesARingWithoutKick(t *testing.T) {
	q := newQueueHost(t)
	wantRefused(t, "setup without a kick", q.SetupVring(q.vring(1, -1, -1)))
	q.queues[0].pending.Add(1)
	q.must(q.SetEnable(0, true))
	q.signal(q.kick)
	<-q.queues[0].processed
}

// If Open fails, StartQueue closes the descriptors. For a queue that is not started, SetCall and StopQueue return
// errors, and SetCall closes its descriptor.
func TestQueueDeviceWithoutAQueue(t *testing.T) {
	testkit.CheckFDs(t)
	bad := errors.New("no such ring")
	d := &QueueDevice{Queues: 1, Open: func(Vring) (Queue, error) { return nil, bad }}
	made := func() int { return testkit.Must(unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK))(t) }
	testkit.ErrorIs(t, d.StartQueue(Vring{Kick: made(), Call: made(), Err: made()}), bad)
	testkit.ErrorSays(t, d.SetCall(0, made()), "queue 0 is not started")
	testkit.ErrorSays(t, testkit.Err(d.StopQueue(0)), "queue 0 is not started")
}
