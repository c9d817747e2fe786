package gateway

import (
	"maps"
	"slices"
	"sync"
	"sync/atomic"

	"gvisor.dev/gvisor/pkg/buffer"

	"vnic.dev/vnic/internal/ether"
	"vnic.dev/vnic/internal/nic"
	"vnic.dev/vnic/internal/wire"
)

// Bounds of the frames that wait for netstack. A port may have an equal part of inboxFrames and inboxBytes
// among the ports with frames there, or laneFrames and laneBytes if these are more.
const (
	inboxFrames = 512
	inboxBytes  = 4 << 20
	laneFrames  = 32
	laneBytes   = 128 << 10 // about twice the longest frame
	turnBytes   = 64 << 10  // bytes of credit that a port gets in each turn
	frameCost   = 2 << 10   // least bytes that a frame counts in a turn
)

// arrived is a delivered frame, from its network header on.
type arrived struct {
	view      *buffer.View
	payload   *buffer.View // behind view; nil: view has all bytes
	from      uint32
	proto     uint16
	group     bool // its destination MAC was a group address
	fragment  bool // an IP fragment: no checksum of TCP or UDP was verified
	solicited bool
	beyond    bool // netstack does not get it: filter.pingBeyond
}

func (a *arrived) size() int { return a.view.Size() + a.payload.Size() }

func (a *arrived) release() {
	a.view.Release()
	if a.payload != nil {
		a.payload.Release()
	}
}

// inbox holds frames for netstack: a queue for each port of the switch (a lane), served in turn by bytes. A
// port that sends too much fills its own lane only.
//
// A goroutine may take the inbox's lock while it holds a lane's, and no lock while it holds the inbox's.
type inbox struct {
	filled chan struct{} // capacity 1: there are new frames in turn, or the inbox is closed
	closed atomic.Bool
	active atomic.Int32 // lanes with frames or reserved space

	mu    sync.Mutex
	lanes map[uint32]*lane // by wire.Packet.From
	turn  []*lane          // with frames, the next one first
}

// lane has the frames of one port. When it is full, the port's senders wait on the RxBase.
type lane struct {
	nic.RxBase // its lock guards the fields below
	in         *inbox
	queue      []arrived
	used       int // queued frames, and those for which a sender has reserved space
	bytes      int
	credit     int  // bytes that netstack may still take in the lane's turn
	inTurn     bool // in inbox.turn, or the reader has it

	idle bool // used is 0; written under both locks
}

func newInbox() *inbox {
	return &inbox{filled: make(chan struct{}, 1), lanes: map[uint32]*lane{}}
}

// lane returns a port's lane, and makes it if there is none. If there are then as many lanes as a switch can have
// ports, it first deletes idle ones.
func (q *inbox) lane(from uint32) *lane {
	q.mu.Lock()
	defer q.mu.Unlock()
	l := q.lanes[from]
	if l == nil {
		if len(q.lanes) >= wire.MaxPorts {
			maps.DeleteFunc(q.lanes, func(_ uint32, old *lane) bool { return old.idle })
		}
		l = &lane{in: q, idle: true}
		l.Init(l)
		q.lanes[from] = l
	}
	return l
}

func (q *inbox) limit() (frames, bytes int) {
	n := max(1, int(q.active.Load()))
	return max(laneFrames, inboxFrames/n), max(laneBytes, inboxBytes/n)
}

// reserve reserves space for a frame of n bytes, unless it returns true: full, the lane has no space now; closed, the
// inbox takes no more.
func (l *lane) reserve(n int) (full, closed bool) {
	l.Lock()
	defer l.Unlock()
	frames, bytes := l.in.limit()
	closed = l.in.closed.Load()
	if closed || l.used >= frames || l.bytes+n > bytes && l.used > 0 {
		return !closed, closed
	}
	l.count(1, n)
	return false, false
}

// The caller holds the lock.
func (l *lane) count(frames, bytes int) {
	l.used += frames
	l.bytes += bytes
	if idle := l.used == 0; idle != l.idle {
		l.in.mu.Lock()
		l.idle = idle
		l.in.mu.Unlock()
		if idle {
			l.in.active.Add(-1)
		} else {
			l.in.active.Add(1)
		}
	}
	if frames < 0 {
		l.relieve()
	}
}

func (l *lane) unreserve(n int) {
	l.Lock()
	defer l.Unlock()
	l.count(-1, -n)
}

// put adds a frame, for which space is reserved.
func (l *lane) put(a arrived) {
	l.Lock()
	defer l.Unlock()
	l.queue = append(l.queue, a)
	if !l.inTurn {
		l.inTurn = true
		l.in.append(l)
	}
}

func (q *inbox) append(l *lane) {
	q.mu.Lock()
	q.turn = append(q.turn, l)
	q.mu.Unlock()
	ether.Signal(q.filled)
}

func (q *inbox) next() *lane {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.turn) == 0 {
		return nil
	}
	l := q.turn[0]
	q.turn[0] = nil
	q.turn = q.turn[1:]
	return l
}

// take appends frames of the lane whose turn it is, by a deficit round robin. If it adds none, no lane has
// frames.
func (q *inbox) take(into []arrived) []arrived {
	l := q.next()
	if l == nil {
		return into
	}
	l.Lock()
	defer l.Unlock()
	l.credit += turnBytes
	n, bytes := 0, 0
	for n < len(l.queue) {
		cost := max(frameCost, l.queue[n].size())
		if cost > l.credit {
			break
		}
		l.credit -= cost
		bytes += l.queue[n].size()
		n++
	}
	into = append(into, l.queue[:n]...)
	rest := copy(l.queue, l.queue[n:])
	clear(l.queue[rest:])
	l.queue = l.queue[:rest]
	l.count(-n, -bytes)
	if l.inTurn = rest > 0; l.inTurn {
		q.append(l)
	} else {
		l.credit = 0
	}
	return into
}

// close refuses further frames. Queued frames can still be taken.
func (q *inbox) close() {
	q.closed.Store(true)
	q.mu.Lock()
	lanes := slices.Collect(maps.Values(q.lanes))
	q.mu.Unlock()
	for _, l := range lanes {
		l.Lock()
		l.relieve()
		l.Unlock()
	}
	ether.Signal(q.filled)
}

// AwaitBuffers implements nic.RxModel: senders wait until half of the lane's space is free.
func (l *lane) AwaitBuffers() bool {
	frames, bytes := l.in.limit()
	return !l.in.closed.Load() && (l.used > frames/2 || l.bytes > bytes/2)
}

// Buffers implements nic.RxModel.
func (l *lane) Buffers() int {
	frames, _ := l.in.limit()
	return max(0, frames-l.used)
}

// relieve wakes the lane's senders if they need not wait any more. The caller holds the lock.
func (l *lane) relieve() {
	if !l.AwaitBuffers() {
		l.WakeAll()
	}
}

// Stopped implements nic.RxModel: a lane cannot fail.
func (l *lane) Stopped(error) {}
