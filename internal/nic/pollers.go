package nic

import (
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/dma"
)

// Pollers are threads that serve the transmit queues of several devices by looking at their rings
// again and again, as DPDK's drivers do: no driver kicks, and no thread is woken. Each queue
// belongs to one of them. One that has found nothing in all of its queues for pollIdle sleeps with
// kicks on, unless it is hot.
//
// A thread serves ports in turn, whatever number of queues each has: in a turn, a batch of the port's
// next queue that has frames. A port whose batch had more than turnBytes misses turns until it has paid
// for the rest, unless no other port has frames.
//
// The runtime gets a processor more for each, so that other goroutines have as many as before.
type Pollers struct {
	hot     bool
	threads []*poller
	once    sync.Once
}

// pollIdle is how long a poller looks at empty rings before it sleeps.
const pollIdle = time.Millisecond

// firstKicks is how many looks at a ring pass between two looks for its first kick, which is a system call.
const firstKicks = 64

const (
	turnBytes = 64 << 10 // what a port may move in a turn on average, where others have frames
	frameCost = 2 << 10  // what a frame counts at least: a short one takes about as long as this copied
)

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
	ports   []*polledPort // of these, in the order of their turns
	fds     []unix.PollFd
	watched []*Patience
	nap     nap
}

func (t *poller) run() {
	defer close(t.done)
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var idle time.Time // since then; zero: not idle
	for !t.closing.Load() {
		if t.changed.Load() {
			t.take()
		}
		if t.turn() {
			idle = time.Time{}
			continue
		}
		now := time.Now()
		switch {
		case idle.IsZero():
			idle = now
		case !t.hot && now.Sub(idle) >= pollIdle:
			t.sleep()
			idle = time.Time{}
		}
	}
}

// take takes the Senders that are new.
func (t *poller) take() {
	t.changed.Store(false)
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, s := range t.added {
		t.senders = append(t.senders, s)
		p := t.portOf(s)
		p.senders = append(p.senders, s)
	}
	clear(t.added)
	t.added = t.added[:0]
}

// polledPort is a port of which a thread has queues.
type polledPort struct {
	port    *Port
	senders []*Sender
	next    int // of these, the one whose turn it is
	credit  int // bytes that it may move; below 0 it has moved so many too much
}

// portOf gives the port of a Sender, which is one by itself if it is of no NIC.
func (t *poller) portOf(s *Sender) *polledPort {
	for _, p := range t.ports {
		if p.port != nil && p.port == s.port {
			return p
		}
	}
	p := &polledPort{port: s.port}
	t.ports = append(t.ports, p)
	return p
}

// turn is a turn of each port, and reports whether one of them had frames.
func (t *poller) turn() (busy bool) {
	missed := false
	for i := 0; i < len(t.ports); i++ {
		p := t.ports[i]
		if p.credit = min(p.credit+turnBytes, turnBytes); p.credit <= 0 {
			missed = true
			continue
		}
		busy = t.serve(p) || busy
		if len(p.senders) == 0 {
			t.ports = slices.Delete(t.ports, i, i+1)
			i--
		}
	}
	if missed && !busy { // nobody else has frames
		for _, p := range t.ports {
			p.credit = max(p.credit, 0)
		}
	}
	return busy || missed
}

// serve does a round of the port's next queue that has something to do, and reports whether it had frames. Frames that
// are held are something to do as well: each retry takes time.
func (t *poller) serve(p *polledPort) (busy bool) {
	for range len(p.senders) {
		if p.next >= len(p.senders) {
			p.next = 0
		}
		s := p.senders[p.next]
		n, ended := s.turn()
		if ended {
			p.senders = slices.Delete(p.senders, p.next, p.next+1)
			i := slices.Index(t.senders, s)
			t.senders = slices.Delete(t.senders, i, i+1)
			t.load.Add(-1)
			close(s.done) // it may start again, on another thread
			continue
		}
		p.next++
		moved := s.moved
		s.moved = 0
		p.credit -= moved
		if busy = n > 0 || moved > 0; busy || s.held > 0 {
			return busy
		}
	}
	return false
}

// costOf is what frames that are done count in a port's turn.
func costOf(fs []*TxFrame) (bytes int) {
	for _, f := range fs {
		bytes += max(frameCost, int(f.Packet.Len()))
	}
	return bytes
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
