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

// Pollers are threads that serve the transmit queues of several devices by polling their rings, as DPDK's
// drivers do. From Start to Stop of its Sender a queue belongs to one thread. A thread that has moved no frame
// for pollIdle sleeps with kicks enabled, unless hot is set (NewPollers).
//
// A thread serves ports in turn, however many queues each has, with a batch of the port's next queue that has
// frames. A port whose batches have more than turnBytes on average skips turns, but at most one after each batch while
// no other port has frames.
//
// Until Close, each thread adds one to GOMAXPROCS.
type Pollers struct {
	hot     bool
	threads []*poller
	once    sync.Once
}

// pollIdle is how long a poller that is not hot polls without moving a frame before it sleeps.
const pollIdle = time.Millisecond

// firstKicks is the number of a queue's turns for each check for its first kick. The check is a system call.
const firstKicks = 64

const (
	turnBytes = 64 << 10 // most bytes of a port's turn on average, if other ports have frames
	frameCost = 2 << 10  // least bytes that a frame counts
)

// NewPollers starts n threads, which never sleep if hot is set. The Senders that they serve must stop before
// Close.
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

type poller struct {
	event
	hot     bool
	closing atomic.Bool
	done    chan struct{}
	load    atomic.Int32 // number of Senders, those in added included

	changed atomic.Bool
	mu      sync.Mutex
	added   []*Sender

	senders []*Sender
	ports   []*polledPort // ports of senders
	fds     []unix.PollFd
	watched []*Patience
	nap     nap
}

func (t *poller) run() {
	defer close(t.done)
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var idle time.Time // of the first turn that was not busy since a busy turn or a sleep; zero: none
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

type polledPort struct {
	port    *Port
	senders []*Sender
	next    int
	credit  int // bytes that it may move; negative: excess that it has not paid for yet
}

// portOf returns the polledPort of a Sender, and makes it if there is none. A Sender without a Port has one of its own.
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

// turn gives each port a turn, unless its credit is used up: then the port skips the turn. turn reports whether frames
// were moved or a port skipped its turn.
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
	if missed && !busy { // the other ports moved no frames
		for _, p := range t.ports {
			p.credit = max(p.credit, 0)
		}
	}
	return busy || missed
}

// serve runs rounds of the port's queues, in order, until a queue has moved frames or holds frames. It reports whether
// frames were moved.
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
			close(s.done) // from now on Start may run the Sender again
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

// costOf returns how many bytes fs, frames that are done, count in their port's turn.
func costOf(fs []*TxFrame) (bytes int) {
	for _, f := range fs {
		bytes += max(frameCost, int(f.Packet.Len()))
	}
	return bytes
}

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
			unix.PollFd{Fd: int32(s.kick), Events: unix.POLLIN}) // ppoll ignores -1
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

func (t *poller) consumeAll() {
	if t.fds[0].Revents != 0 {
		t.consume()
	}
	for i, s := range t.senders {
		wake, kick := &t.fds[1+2*i], &t.fds[2+2*i]
		if wake.Revents != 0 {
			s.sleep.consume()
		}
		if kick.Revents != 0 && s.sleep.kicks.Consume(s.kick) {
			s.kicked = true
		}
	}
}

func (t *poller) fail(err error) {
	for _, s := range t.senders {
		s.broken = err
	}
}
