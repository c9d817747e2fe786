package nic

import (
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/dma"
)

// Pollers are threads that serve the transmit queues of several devices by looking at their rings
// again and again, as DPDK's drivers do: no driver kicks, and no thread is woken. Each queue
// belongs to one of them, which serves its queues in turn, a batch a turn. One that has found
// nothing in all of them for pollIdle sleeps with kicks on, unless it is hot.
//
// The runtime gets a processor more for each, so that other goroutines have as many as before.
type Pollers struct {
	hot     bool
	threads []*poller
	once    sync.Once
}

// pollIdle is how long a poller looks at empty rings before it sleeps.
const pollIdle = time.Millisecond

// firstKicks is how many idle turns pass between two looks for the first kick of a ring, which is a system call.
const firstKicks = 64

// NewPollers starts n threads. Close ends them, when no queue is served any more.
func NewPollers(n int, hot bool) (*Pollers, error) {
	if n < 1 {
		return nil, fmt.Errorf("%d threads that poll", n)
	}
	p := &Pollers{hot: hot}
	for range n {
		t := &poller{hot: hot, done: make(chan struct{})}
		if err := t.open(); err != nil {
			p.Close()
			return nil, err
		}
		p.threads = append(p.threads, t)
		runtime.GOMAXPROCS(runtime.GOMAXPROCS(0) + 1)
		dma.Go(t.run)
	}
	return p, nil
}

// Close ends the threads.
func (p *Pollers) Close() {
	p.once.Do(func() {
		for _, t := range p.threads {
			t.closing.Store(true)
			t.Wake()
			<-t.done
			t.event.Close()
			runtime.GOMAXPROCS(runtime.GOMAXPROCS(0) - 1)
		}
	})
}

// serve gives a started Sender to the thread that has fewest.
func (p *Pollers) serve(s *Sender) {
	least := p.threads[0]
	for _, t := range p.threads[1:] {
		if t.load.Load() < least.load.Load() {
			least = t
		}
	}
	least.load.Add(1)
	least.mu.Lock()
	least.added = append(least.added, s)
	least.mu.Unlock()
	least.changed.Store(true)
	least.Wake()
}

// poller is one of the threads.
type poller struct {
	event
	hot     bool
	closing atomic.Bool
	done    chan struct{}
	load    atomic.Int32 // Senders that it has, or is about to

	changed atomic.Bool // there may be some in added
	mu      sync.Mutex
	added   []*Sender // under mu

	// The thread's.
	senders []*Sender
	fds     []unix.PollFd
	watched []*Patience
	nap     nap
}

func (t *poller) run() {
	defer close(t.done)
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var idle time.Time // since then; zero: not idle
	for turns := 0; !t.closing.Load(); turns++ {
		if t.changed.Load() {
			t.take()
		}
		if t.turn(turns%firstKicks == 0) {
			idle = time.Time{}
			continue
		}
		now := time.Now()
		switch {
		case idle.IsZero():
			idle = now
		case !t.hot && now.Sub(idle) >= pollIdle:
			t.sleep()
			idle, turns = time.Time{}, -1
		}
	}
}

// take takes the Senders that are new.
func (t *poller) take() {
	t.changed.Store(false)
	t.mu.Lock()
	defer t.mu.Unlock()
	t.senders = append(t.senders, t.added...)
	clear(t.added)
	t.added = t.added[:0]
}

// turn does a round of each queue, and says whether one of them had frames. kicks says that first kicks are looked for.
func (t *poller) turn(kicks bool) (busy bool) {
	left := t.senders[:0]
	for _, s := range t.senders {
		n, ended := s.turn(kicks)
		busy = busy || n > 0
		if ended {
			t.load.Add(-1)
			close(s.done) // it may start again, on another thread
			continue
		}
		left = append(left, s)
	}
	clear(t.senders[len(left):])
	t.senders = left
	return busy
}

// sleep sleeps until a driver kicks, a receiver of held frames has buffers, the patience of one ends, or somebody
// wakes the thread.
func (t *poller) sleep() {
	t.Park()
	defer t.Unpark()
	t.watched = t.watched[:0]
	t.fds = append(t.fds[:0], unix.PollFd{Fd: int32(t.file.fd), Events: unix.POLLIN})
	left := time.Duration(-1)
	ready := t.changed.Load() || t.closing.Load()
	prepared := 0
	for _, s := range t.senders {
		if ready {
			break
		}
		prepared++
		ready = !s.prepare()
		if d := s.timeLeft(); d >= 0 && (left < 0 || d < left) {
			left = d
		}
		t.watched = append(t.watched, s.watch())
		t.fds = append(t.fds, unix.PollFd{Fd: int32(s.sleep.file.fd), Events: unix.POLLIN},
			unix.PollFd{Fd: int32(s.kick), Events: unix.POLLIN}) // ppoll skips -1
	}
	if !ready {
		if err := t.nap.poll(t.fds, left, t.watched); err != nil {
			t.fail(err)
		}
		t.consumeAll()
	}
	for _, s := range t.senders[:prepared] {
		s.resume()
	}
}

// consumeAll takes the signals that ended the sleep.
func (t *poller) consumeAll() {
	if t.fds[0].Revents != 0 {
		t.consume()
	}
	for i, s := range t.senders {
		own, kick := &t.fds[1+2*i], &t.fds[2+2*i]
		if own.Revents != 0 {
			s.sleep.consume()
		}
		if kick.Revents != 0 && s.sleep.kicks.Consume(s.kick) {
			s.kicked = true
		}
	}
}

// fail stops all queues: nothing could wake the thread for them.
func (t *poller) fail(err error) {
	for _, s := range t.senders {
		s.broken = err
	}
}
