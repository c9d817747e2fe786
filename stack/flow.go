package stack

import (
	"sync"
	"sync/atomic"

	"gvisor.dev/gvisor/pkg/tcpip/header"

	"vnic.dev/vnic/gpumem"
	"vnic.dev/vnic/internal/ether"
	"vnic.dev/vnic/splitter"
)

// flow is the link layer's record of a TCP connection: in which memory each byte of the two streams is. Positions
// are stream offsets: in each direction 0 is the first byte after the SYN.
//
// An outgoing SYN creates a flow. A goroutine takes mu after netstack's locks and the transmit queue's, and
// before the locks of shadow queues and pools.
type flow struct {
	key   splitter.Flow // as in the packets that the peer sends
	heads atomic.Int32  // len(linear), which readers load without the lock

	mu    sync.Mutex
	conn  *Conn
	age   int    // sweeps in a row that found no endpoint of its own
	queue int    // receive queue of the last segment before conn was set
	last  int    // receive queue of the last payload; -1: no payload came
	heard uint32 // number of packets received

	// Transmit. An unacknowledged byte that is in no part is from Write, in host memory.
	issKnown, finSent bool
	iss               uint32
	mss               int    // segment size of netstack's last GSO packet; 0: unknown
	una, nxt, written uint64 // ends of the bytes acknowledged, sent, and accepted from the application
	parts             deque[part]
	sends             deque[send]
	firstSend         uint32 // number of the first send in sends
	done              deque[completion]
	tail              tail
	ended             bool   // netstack sends nothing more
	wnd               uint32 // the peer's last advertised window, not scaled, if wndKnown
	wndKnown          bool

	// Receive.
	irsKnown   bool
	irs        uint32
	acked      uint64 // the highest acknowledgment that we sent: a lower bound of netstack's RCV.NXT
	ahead      uint64 // the end of the bytes that netstack received without a gap, if it dropped none
	read       uint64 // position up to which the application has read
	pending    deque[pending]
	pages      int    // number of pages of the frames in pending
	linear     []span // bytes in host memory at the start of packets with the rest of the payload in device memory
	rxShutdown bool
	adv        uint32 // netstack's last window, not scaled, before narrow
	scale      [2]int8
	answered   bool // our SYN answered the peer's SYN
}

// part is a piece of the stream in a GPU's memory.
type part struct {
	span
	off  uint64 // where start is in the GPU's memory
	gpu  int
	send uint32
}

// span is the range [start, end) of the stream.
type span struct{ start, end uint64 }

// send is one call of SendDevmem.
type send struct {
	binding  *txBinding
	end      uint64
	open     bool // SendDevmem has not returned
	inFlight int  // frames that the device may still read
}

// completion is a range of numbers of complete sends, including both ends.
type completion struct{ lo, hi uint32 }

// pending is the payload of a frame that netstack may still deliver, in a slot of a shadow queue.
type pending struct {
	end   uint64
	queue *shadowQueue
	slot  uint32
}

// syn records the outgoing SYN t. It returns false, and records nothing, if the flow belongs to an older connection.
func (f *flow) syn(t header.TCP) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.ended || f.issKnown && f.iss != t.SequenceNumber() && (f.conn != nil || f.nxt > 0 || f.acked > 0) {
		return false
	}
	f.iss, f.issKnown, f.age = t.SequenceNumber(), true, 0
	if t.Flags().Contains(header.TCPFlagAck) {
		f.irs, f.irsKnown = t.AckNumber()-1, true
	}
	return true
}

// txOffset returns the stream offset of an outgoing sequence number: -1 for a SYN.
func (f *flow) txOffset(seq uint32) int64 {
	return int64(f.una) + int64(int32(seq-(f.iss+1+uint32(f.una))))
}

func (f *flow) rxOffset(seq uint32) int64 {
	return int64(f.acked) + int64(int32(seq-(f.irs+1+uint32(f.acked))))
}

// acknowledge processes the peer's ACK and completes sends. It ignores ACKs older than una and, like netstack, ACKs of
// data that was not sent.
func (f *flow) acknowledge(ack, wnd uint32) {
	if !f.issKnown {
		return
	}
	off := f.txOffset(ack)
	top := int64(f.nxt)
	if f.finSent {
		top++
	}
	if off > top || off < int64(f.una) {
		return
	}
	f.wnd, f.wndKnown = wnd, true
	if uint64(off) >= f.tail.end {
		f.dropTail()
	}
	if una := min(uint64(off), f.nxt); una > f.una {
		f.una = una
		f.tail.silent = 0
		f.complete()
	}
}

// complete moves the sends before the first incomplete one to done: their call has returned, no frame is in flight, and
// their bytes are acknowledged or the flow has ended.
func (f *flow) complete() {
	for f.parts.len() > 0 && (f.parts.elem(0).end <= f.una || f.ended) {
		f.parts.pop()
	}
	woke := false
	for f.sends.len() > 0 {
		s := f.sends.elem(0)
		if s.open || s.inFlight > 0 || (s.end > f.una && !f.ended) {
			break
		}
		s.binding.unref()
		f.sends.pop()
		if n := f.done.len(); n > 0 && f.done.elem(n-1).hi+1 == f.firstSend {
			f.done.elem(n-1).hi++
		} else {
			f.done.push(completion{f.firstSend, f.firstSend})
		}
		f.firstSend++
		woke = true
	}
	if woke && f.conn != nil {
		ether.Signal(f.conn.csig)
	}
}

func (f *flow) txDone(lo, hi uint32) {
	f.mu.Lock()
	f.addInFlight(lo, hi, -1)
	f.complete()
	f.mu.Unlock()
}

// addInFlight adds n to the frames in flight of sends lo to hi.
func (f *flow) addInFlight(lo, hi uint32, n int) {
	for i := lo; ; i++ {
		f.sends.elem(int(i - f.firstSend)).inFlight += n
		if i == hi {
			return
		}
	}
}

// end records that netstack will send nothing more for the flow.
func (f *flow) end() {
	f.mu.Lock()
	if !f.ended {
		f.ended = true
		f.dropTail()
		f.complete()
		if f.conn != nil { // wakes calls that checked ended before it was set
			ether.Signal(f.conn.csig)
			ether.Signal(f.conn.wsig)
		}
	}
	f.mu.Unlock()
}

type verdict uint8

const (
	deliver verdict = iota
	junk            // netstack must see the segment, but will not deliver its payload
	refuse          // drop the segment: the pool has few pages, or shadowQueue.take failed
)

// maxWindow is how many bytes beyond ahead payload may begin before it counts as outside of the window.
const maxWindow = 64 << 20

// receive processes a received segment with n bytes of payload, and returns what to do with the payload.
// The caller holds mu.
func (f *flow) receive(h *splitter.Headers, wnd uint32, n int, queue int, pages gpumem.Supply) verdict {
	if f.conn == nil {
		f.queue = queue
	}
	f.heard++
	if n > 0 {
		f.last = queue
	}
	if h.TCPFlags&splitter.SYN != 0 {
		if f.issKnown && f.acked == 0 && f.read == 0 && f.ahead == 0 {
			f.irs, f.irsKnown = h.Seq, true
		}
	}
	if h.TCPFlags&(splitter.ACK|splitter.RST) == splitter.ACK {
		f.acknowledge(h.Ack, wnd)
	}
	if n == 0 {
		return deliver
	}
	if f.rxShutdown || !f.irsKnown || h.TCPFlags&(splitter.SYN|splitter.RST) != 0 {
		return junk
	}
	off := f.rxOffset(h.Seq)
	end := off + int64(n)
	switch {
	case end <= int64(f.acked), off > int64(f.ahead)+maxWindow:
		return junk
	case off <= int64(f.acked): // the next bytes of the stream: always deliver these
		f.ahead = uint64(end) // netstack may have dropped later bytes
		return deliver
	case uint64(off) == f.ahead && pages < gpumem.SupplyEmpty: // most likely in order
	case pages > gpumem.SupplyOK:
		return refuse
	}
	if off <= int64(f.ahead) {
		f.ahead = max(f.ahead, uint64(end))
	}
	return deliver
}

// keep records a segment with n bytes of payload, whose bytes in device memory are in a slot that netstack gets.
func (f *flow) keep(seq uint32, n int, l *shadowQueue, slot uint32) {
	end := uint64(f.rxOffset(seq) + int64(n))
	i := f.pending.len()
	for i > 0 && f.pending.elem(i-1).end > end {
		i--
	}
	f.pending.insert(i, pending{end, l, slot})
	f.pages += len(l.slots[slot])
}

// keepLinear records that the first n bytes of a segment are in host memory and the rest in device memory, unless the
// application has read past them.
func (f *flow) keepLinear(seq uint32, n int) {
	off := f.rxOffset(seq)
	if off+int64(n) <= int64(f.read) {
		return
	}
	f.linear = append(f.linear, span{uint64(max(off, 0)), uint64(off + int64(n))})
	f.heads.Store(int32(len(f.linear)))
}

// headAt returns how many bytes a span of keepLinear has from pos on; ok is false if no span has pos.
func (f *flow) headAt(pos uint64) (n int, ok bool) {
	if f.heads.Load() == 0 {
		return 0, false
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, s := range f.linear {
		if s.start <= pos && pos < s.end {
			return int(s.end - pos), true
		}
	}
	return 0, false
}

// advance moves the application's position n bytes forward, and appends to drop the payload that netstack
// cannot deliver any more.
func (f *flow) advance(n int, drop []pending) []pending {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.read += uint64(n)
	drop = f.drop(drop, false)
	if len(f.linear) > 0 {
		keep := f.linear[:0]
		for _, s := range f.linear {
			if s.end > f.read {
				keep = append(keep, s)
			}
		}
		f.linear = keep
		f.heads.Store(int32(len(keep)))
	}
	return drop
}

func (f *flow) drop(drop []pending, all bool) []pending {
	for f.pending.len() > 0 && (all || f.pending.elem(0).end <= f.read) {
		p := f.pending.pop()
		f.pages -= len(p.queue.slots[p.slot])
		drop = append(drop, p)
	}
	return drop
}

// stop detaches the flow from its Conn, and ends reading; it returns the pending payload. c is nil for a flow
// without a Conn; for another Conn stop does nothing.
func (f *flow) stop(c *Conn) []pending {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.conn != c {
		return nil
	}
	f.conn = nil
	f.rxShutdown = true
	f.linear = nil
	f.heads.Store(0)
	return f.drop(nil, true)
}

func releaseAll(ps []pending) {
	for i, p := range ps {
		p.queue.release(p.slot)
		ps[i] = pending{}
	}
}

// progress returns a sum of positions, which changes when bytes are acknowledged, received or read.
func (f *flow) progress() uint64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.una + f.ahead + f.acked + f.read
}
