package stack

import (
	"sync"
	"sync/atomic"

	"vnic.dev/vnic/gpumem"
	"vnic.dev/vnic/internal/ether"
	"vnic.dev/vnic/splitter"
)

// flow is what the link layer knows of one TCP connection, by looking at its headers in both directions: enough to say
// where each byte of the stream lies. Positions are stream offsets: 0 is the first byte behind the SYN.
//
// A flow is made when our SYN goes out. Its conn is set when the application has the connection, and unset when it has
// closed it. The lock is taken below netstack's and the transmit queue's, above those of shadow queues and pools.
type flow struct {
	key   splitter.Flow // of received packets
	heads atomic.Int32  // len(linear): readers look before they lock

	mu    sync.Mutex
	conn  *Conn
	age   int    // sweeps that found no endpoint
	queue int    // of the handshake
	last  int    // queue by which payload came last; -1: none came
	heard uint32 // packets of the peer

	// Transmit. What lies in no part was written by Write, and netstack carries its bytes.
	issKnown, finSent bool
	iss               uint32
	mss               int    // of the packets that netstack leaves to be cut; 0: not known
	una, nxt, written uint64 // acknowledged, sent, accepted from the application
	parts             deque[part]
	sends             deque[send]
	firstSend         uint32 // number of the send in front
	done              deque[completion]
	tail              tail
	ended             bool   // netstack sends no more: nothing needs to be acknowledged
	wnd               uint32 // as the peer advertised it last, not scaled
	wndKnown          bool

	// Receive.
	irsKnown   bool
	irs        uint32
	acked      uint64 // what we have acknowledged: a lower bound of netstack's RCV.NXT
	ahead      uint64 // end of what was given to netstack without a gap, if netstack dropped nothing
	read       uint64 // position of the application
	pending    deque[pending]
	pages      int    // in pending
	linear     []span // of packets that are not readable but begin with bytes in host memory
	rxShutdown bool   // no more is read
	adv        uint32 // as netstack advertised it last, not scaled
	scale      [2]int8
	answered   bool // our SYN answered the peer's
}

// part is a piece of the stream that lies in a GPU.
type part struct {
	span
	off  uint64 // of start, in the GPU
	gpu  int
	send uint32
}

// span is [start, end) of the stream.
type span struct{ start, end uint64 }

// send is one call of SendDevmem.
type send struct {
	binding  *txBinding
	end      uint64
	open     bool // the call goes on
	inFlight int  // frames that the device may still read
}

// completion is a range of sends, both ends included.
type completion struct{ lo, hi uint32 }

// pending is a frame's payload that netstack may still deliver.
type pending struct {
	end   uint64
	queue *shadowQueue
	slot  uint32
}

// syn notes an outgoing SYN. It returns false if the flow is another, older connection.
func (f *flow) syn(seq uint32, hasAck bool, ack uint32) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.issKnown && f.iss != seq && (f.conn != nil || f.nxt > 0 || f.acked > 0 || f.ended) {
		return false
	}
	if f.ended {
		return false
	}
	f.iss, f.issKnown, f.age = seq, true, 0
	if hasAck {
		f.irs, f.irsKnown = ack-1, true
	}
	return true
}

// txOffset is the stream offset of an outgoing sequence number; of a probe it lies before una, and -1 is the SYN's.
func (f *flow) txOffset(seq uint32) int64 {
	return int64(f.una) + int64(int32(seq-(f.iss+1+uint32(f.una))))
}

func (f *flow) rxOffset(seq uint32) int64 {
	return int64(f.acked) + int64(int32(seq-(f.irs+1+uint32(f.acked))))
}

// acknowledge notes the peer's ACK and completes sends. ACKs of what was never sent are ignored, as netstack does.
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

// complete moves sends that are acknowledged, and that the device does not read, to done.
func (f *flow) complete() {
	for f.parts.len() > 0 && (f.parts.at(0).end <= f.una || f.ended) {
		f.parts.pop()
	}
	woke := false
	for f.sends.len() > 0 {
		s := f.sends.at(0)
		if s.open || s.inFlight > 0 || (s.end > f.una && !f.ended) {
			break
		}
		s.binding.unref()
		f.sends.pop()
		if n := f.done.len(); n > 0 && f.done.at(n-1).hi+1 == f.firstSend {
			f.done.at(n-1).hi++
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

// txDone says that the device has read a frame of sends lo to hi.
func (f *flow) txDone(lo, hi uint32) {
	f.mu.Lock()
	f.addInFlight(lo, hi, -1)
	f.complete()
	f.mu.Unlock()
}

// addInFlight counts a frame of sends lo to hi that the device may read from now on, or with -1
// reads no more.
func (f *flow) addInFlight(lo, hi uint32, n int) {
	for i := lo; ; i++ {
		f.sends.at(int(i - f.firstSend)).inFlight += n
		if i == hi {
			return
		}
	}
}

// end says that netstack will send nothing more: sends need no acknowledgement any longer.
func (f *flow) end() {
	f.mu.Lock()
	if !f.ended {
		f.ended = true
		f.dropTail()
		f.complete()
		if f.conn != nil { // a writer that waits may have looked before the end
			ether.Signal(f.conn.csig)
			ether.Signal(f.conn.wsig)
		}
	}
	f.mu.Unlock()
}

// verdict is what becomes of received payload.
type verdict uint8

const (
	deliver verdict = iota
	junk            // netstack must see the segment, but will not deliver its payload
	refuse          // no room: the segment is lost
)

// maxWindow is more than any receive window can be: payload beyond is not in it.
const maxWindow = 64 << 20

// receive looks at a received segment with n bytes of payload.
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
	case off <= int64(f.acked): // what we asked for: always
		f.ahead = uint64(end) // netstack may have dropped what came behind it before
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

// keep notes payload that netstack was given.
func (f *flow) keep(seq uint32, n int, l *shadowQueue, slot uint32) {
	end := uint64(f.rxOffset(seq) + int64(n))
	i := f.pending.len()
	for i > 0 && f.pending.at(i-1).end > end {
		i--
	}
	f.pending.insert(i, pending{end, l, slot})
	f.pages += len(l.slots[slot])
}

// keepLinear notes that the first n bytes of a segment lie in host memory although it is not readable. If all
// of them lie before the stream, or were read already, it notes nothing.
func (f *flow) keepLinear(seq uint32, n int) {
	off := f.rxOffset(seq)
	if off+int64(n) <= int64(f.read) {
		return
	}
	f.linear = append(f.linear, span{uint64(max(off, 0)), uint64(off + int64(n))})
	f.heads.Store(int32(len(f.linear)))
}

// headAt says whether the byte at pos belongs to a packet that is not readable, and how far that goes.
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

// advance moves the application's position and returns what netstack cannot deliver any more.
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
	for f.pending.len() > 0 && (all || f.pending.at(0).end <= f.read) {
		p := f.pending.pop()
		f.pages -= len(p.queue.slots[p.slot])
		drop = append(drop, p)
	}
	return drop
}

// stop takes the flow from its Conn, which is nil if it has none: no more is read. It returns all
// that is kept.
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

// progress changes whenever a byte was received or acknowledged, or read.
func (f *flow) progress() uint64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.una + f.ahead + f.acked + f.read
}
