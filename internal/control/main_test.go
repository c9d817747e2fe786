package control

import (
	"errors"
	"net"
	"slices"
	"sync"
	"syscall"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

type port struct {
	goldenHandler
	mu    sync.Mutex
	s     *State
	info  Info
	jobs  map[uint64]*JobStatus
	last  uint64
	calls map[string]int
	block chan struct{} // if set, SetSplit waits until it is closed
}

func newPort() *port {
	i := Info{QueuePairs: 4, MaxRSS: 8, MaxRules: 100, MaxBuffers: 4, MaxBindings: 3, MaxFlowCounters: 3, MaxJobs: 4,
		GPUs:        2,
		HeaderLimit: 256, MTU: 9000}
	gpus := goldenHandler{answer: []GPUInfo{{ID: 0, Size: 1 << 20, Place: "rc0/sw0/gpu0"}, {ID: 1, P2P: P2PBus}}}
	return &port{goldenHandler: gpus, s: NewState(77, &i, [40]byte{}), info: i, jobs: make(map[uint64]*JobStatus),
		calls: make(map[string]int)}
}

func (p *port) in(name string) func() {
	p.mu.Lock()
	p.calls[name]++
	return p.mu.Unlock
}

func (p *port) count(name string) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.calls[name]
}

func (p *port) Generation() uint32 { defer p.in("generation")(); return p.s.Generation }
func (p *port) Info() (Info, error) {
	defer p.in("info")()
	i := p.info
	i.Generation = p.s.Generation
	return i, nil
}

func (p *port) SetSplit(s Split) error {
	if p.block != nil {
		p.in("blocked")()
		<-p.block
	}
	defer p.in("split")()
	return p.s.SetSplit(s)
}
func (p *port) Split(q uint16) (Split, error) { defer p.in("")(); return p.s.Split(q) }

func (p *port) AddFlow(r FlowRule) (uint32, error) {
	defer p.in("flow")()
	return p.s.AddFlow(r, int(p.info.MaxRules))
}
func (p *port) DelFlow(id uint32) error    { defer p.in("")(); return p.s.DelFlow(id) }
func (p *port) Flows() ([]FlowRule, error) { defer p.in("")(); return p.s.Rules, nil }
func (p *port) SetRSS(r RSS) error         { defer p.in("")(); return p.s.SetRSS(r, int(p.info.MaxRSS)) }
func (p *port) RSS() (RSS, error)          { defer p.in("")(); return p.s.RSS, nil }

func (p *port) RegisterBuffer(b Buffer) (uint32, error) {
	defer p.in("buffer")()
	if len(p.s.Buffers) == int(p.info.MaxBuffers) {
		return 0, syscall.ENOSPC
	}
	b.ID = uint32(p.calls["buffer"])
	p.s.AddBuffer(b)
	return b.ID, nil
}
func (p *port) UnregisterBuffer(id uint32) error { defer p.in("")(); return p.s.DelBuffer(id) }
func (p *port) Buffers() ([]Buffer, error)       { defer p.in("")(); return p.s.Buffers, nil }
func (p *port) BindRx(b uint32, q []uint16) (uint32, error) {
	defer p.in("")()
	return p.s.BindRx(b, q, int(p.info.MaxBindings))
}
func (p *port) BindTx(b uint32) (uint32, error) {
	defer p.in("")()
	return p.s.BindTx(b, int(p.info.MaxBindings))
}
func (p *port) Unbind(id uint32) error       { defer p.in("")(); return p.s.Unbind(id) }
func (p *port) Bindings() ([]Binding, error) { defer p.in("")(); return p.s.Bindings, nil }
func (p *port) AddFlowCounter(m FlowCounter) (uint32, error) {
	defer p.in("")()
	return p.s.AddFlowCounter(m, int(p.info.MaxFlowCounters))
}
func (p *port) DelFlowCounter(id uint32) error { defer p.in("")(); return p.s.DelFlowCounter(id) }

func (p *port) SubmitJob(j Job) (uint64, error) {
	defer p.in("job")()
	if j.Op == 0 {
		return 0, errors.New("no such operation")
	}
	p.last++
	p.jobs[p.last] = &JobStatus{ID: p.last, State: JobRunning}
	return p.last, nil
}

func (p *port) PollJob(id uint64) (JobStatus, error) {
	defer p.in("poll")()
	if s := p.jobs[id]; s != nil {
		return *s, nil
	}
	return JobStatus{}, syscall.ENOENT
}

func (p *port) CancelJob(id uint64) (JobStatus, error) {
	p.end(id, syscall.ECANCELED)
	return p.PollJob(id)
}

func (p *port) end(id uint64, errno syscall.Errno) JobStatus {
	defer p.in("")()
	s := p.jobs[id]
	if s == nil {
		return JobStatus{}
	}
	if s.State == JobRunning {
		s.State, s.Errno, s.Bytes = JobDone, uint16(errno), 42
	}
	return *s
}

// link joins a client and a dispatcher. drop, if set, gets the number of a frame, from 1 in both directions together,
// and reports whether the frame is lost, and whether it is duplicated.
type link struct {
	t      testing.TB
	d      *Dispatcher
	client *Client
	mu     sync.Mutex
	n      int
	drop   func(n int) (lose, twice bool)
	closed bool
	wait   sync.WaitGroup
}

func (l *link) next() (lose, twice bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.n++
	if l.drop == nil {
		return false, false
	}
	return l.drop(l.n)
}

func (l *link) Send(frame []byte) error {
	if l.closed {
		return net.ErrClosed
	}
	if len(frame) > MaxFrame {
		l.t.Errorf("request of %d bytes", len(frame))
	}
	lose, twice := l.next()
	if lose {
		return errors.New("ring is full")
	}
	for range 1 + map[bool]int{true: 1}[twice] {
		f := slices.Clone(frame)
		l.wait.Go(func() { l.deliver(l.d.Handle(f, make([]byte, 0, MaxFrame))) })
	}
	return nil
}

func (l *link) deliver(frame []byte) {
	if frame == nil {
		return
	}
	if len(frame) > MaxFrame {
		l.t.Errorf("reply of %d bytes", len(frame))
	}
	lose, twice := l.next()
	if lose {
		return
	}
	if !l.client.Receive(frame) {
		l.t.Error("the client does not know its own frame")
	}
	if twice {
		l.client.Receive(frame)
	}
}

func connect(t testing.TB, o ClientOptions) (*Client, *link, *port) {
	p := newPort()
	l := &link{t: t, d: NewDispatcher(p)}
	l.client = NewClient(l, o)
	t.Cleanup(func() {
		l.client.Close()
		l.wait.Wait()
	})
	return l.client, l, p
}
