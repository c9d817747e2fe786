package stack

import (
	"sync"
	"sync/atomic"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
	"vnic.dev/vnic/internal/driver"
)

const (
	maxRanges  = 17   // pieces of device memory in a frame: MAX_SKB_FRAGS
	maxBacklog = 4096 // packets that wait for room on a ring; netstack takes more for lost
)

// txQueue turns netstack's packets into frames. What goes on a ring is decided each time: where the
// payload of a retransmission lies, and whether it is still needed, is looked up when it is put on
// the ring.
//
// Its lock is taken below netstack's locks and above a flow's.
type txQueue struct {
	s     *Stack
	queue int

	waiting atomic.Int64 // frames with payload on the ring, until Completed says that they are sent

	mu      sync.Mutex
	header  txHeader
	frames  []txFrame // of one packet
	out     []driver.TxFrame
	flights []flight // by cookie
	idle    []uint32 // cookies that are free
	backlog deque[backlogged]
}

// txFrame is a frame and what must be known to take it back.
type txFrame struct {
	header  [maxHeader + header.IPv4MaximumHeaderSize]byte
	ranges  [maxRanges]driver.Range
	scratch []byte
	pos, n  int // of the packet's payload
}

// flight is a frame that the device may read device memory for.
type flight struct {
	flow   *flow // nil: the frame has none
	lo, hi uint32
}

// backlogged is a packet that did not fit on the ring, from payload byte skip on.
type backlogged struct {
	pkt  *stack.PacketBuffer
	skip int
}

// write sends a packet, or keeps it for later.
func (q *txQueue) write(pkt *stack.PacketBuffer) tcpip.Error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.backlog.len() > 0 {
		if q.backlog.len() >= maxBacklog {
			q.s.count.txDropped.Add(1)
			return &tcpip.ErrNoBufferSpace{}
		}
		q.backlog.push(backlogged{pkt.IncRef(), 0})
		return nil
	}
	if skip, all := q.transmit(pkt, 0); !all {
		q.backlog.push(backlogged{pkt.IncRef(), skip})
	}
	return nil
}

// completed takes cookies back and goes on with what waits.
func (q *txQueue) completed(cookies []uint64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, c := range cookies {
		if c != bare {
			q.waiting.Add(-1)
		}
		if c > 0 && c <= uint64(len(q.flights)) {
			q.putCookie(c)
		}
	}
	q.flush()
}

// putCookie takes back the cookie of a frame that the device reads no more; one that is not under
// way is nothing.
func (q *txQueue) putCookie(cookie uint64) {
	fl := q.flights[cookie-1]
	if fl.flow == nil {
		return
	}
	q.flights[cookie-1] = flight{}
	q.idle = append(q.idle, uint32(cookie))
	fl.flow.txDone(fl.lo, fl.hi)
}

// flush sends from the backlog what fits.
func (q *txQueue) flush() {
	for q.backlog.len() > 0 {
		b := q.backlog.at(0)
		skip, all := q.transmit(b.pkt, b.skip)
		if !all {
			b.skip = skip
			return
		}
		q.backlog.pop().pkt.DecRef()
	}
}

// close forgets everything: the NIC is closed.
func (q *txQueue) close() {
	q.mu.Lock()
	defer q.mu.Unlock()
	for q.backlog.len() > 0 {
		q.backlog.pop().pkt.DecRef()
	}
	for i := range q.flights {
		q.putCookie(uint64(i) + 1)
	}
}

// transmit puts a packet's frames on the ring, those from payload byte skip on. If it did not take all, it returns
// where to go on.
func (q *txQueue) transmit(pkt *stack.PacketBuffer, skip int) (next int, all bool) {
	if !q.build(pkt, skip) {
		q.takeBack(q.out)
		q.s.count.txDropped.Add(1)
		return 0, true
	}
	for sent := 0; sent < len(q.out); {
		n, err := q.s.nic.Transmit(q.queue, q.out[sent:])
		sent += n
		q.count(q.out[sent-n : sent])
		switch {
		case sent == len(q.out):
		case err != nil: // about this frame, or there is no NIC any more
			q.s.count.txDropped.Add(1)
			q.takeBack(q.out[sent : sent+1])
			sent++
		default:
			q.takeBack(q.out[sent:])
			return q.frames[sent].pos, false
		}
	}
	return 0, true
}

// Cookies of frames that the device reads no device memory for: without payload, and with some.
const (
	bare   = ^uint64(0)
	loaded = bare - 1
)

// count counts the frames with payload that were put on the ring.
func (q *txQueue) count(frames []driver.TxFrame) {
	n := int64(0)
	for i := range frames {
		if frames[i].Cookie != bare {
			n++
		}
	}
	if n > 0 {
		q.waiting.Add(n)
	}
}

// takeBack undoes the flights of frames that were not sent.
func (q *txQueue) takeBack(frames []driver.TxFrame) {
	for i := range frames {
		if len(frames[i].Device) > 0 {
			q.putCookie(frames[i].Cookie)
		}
	}
}

// next appends an empty frame.
func (q *txQueue) next() (*txFrame, *driver.TxFrame) {
	i := len(q.out)
	if i == len(q.frames) {
		q.frames = append(q.frames, make([]txFrame, max(1, i))...)
		for j := range i { // the slices in out point into frames
			q.out[j].Header = q.frames[j].header[:len(q.out[j].Header)]
			if len(q.out[j].Device) > 0 {
				q.out[j].Device = q.frames[j].ranges[:len(q.out[j].Device)]
			}
		}
	}
	// Completed is to tell when a full ring has room, for frames without device memory too.
	q.out = append(q.out, driver.TxFrame{Cookie: bare})
	return &q.frames[i], &q.out[i]
}

// build makes the frames of a packet in out. It returns false if the packet is not to be sent.
func (q *txQueue) build(pkt *stack.PacketBuffer, skip int) bool {
	q.out = q.out[:0]
	h := &q.header
	if !h.set(pkt) {
		return false
	}
	total := pkt.Data().Size()
	if pkt.TransportProtocolNumber != header.TCPProtocolNumber || h.l4 == 0 || h.n-h.l4 < header.TCPMinimumSize {
		b, f := q.next()
		h.other(b.header[:], f, pkt, total)
		var ok bool
		f.Linear, ok = dataAt(pkt, h.n, 0, total, &b.scratch)
		return ok
	}
	tcp := h.tcp()
	f := q.s.flows.outgoing(h.flowKey(), tcp)
	if f == nil {
		if total > 0 { // it is not known where it lies
			return false
		}
		b, fr := q.next()
		h.frame(b.header[:], fr, 0, 0, 0, 0)
		return true
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if q.s.repeat {
		f.refresh(tcp)
		f.remember(pkt, tcp, total)
	}
	f.sent(tcp, total)
	f.narrow(tcp)
	if total == 0 {
		b, fr := q.next()
		h.frame(b.header[:], fr, 0, 0, 0, 0)
		return true
	}
	if f.ended {
		return false
	}
	base := f.txOffset(tcp.SequenceNumber())
	if base+int64(total) <= int64(f.una) {
		// Late: the peer has it all, and its memory is the application's again; or a probe of netstack's. An empty segment
		// below the window makes the peer acknowledge, as a keep-alive does (RFC 9293, 3.8.4), and carries no byte of host
		// memory in the place of device memory.
		tcp.SetSequenceNumber(f.iss + uint32(f.una))
		b, fr := q.next()
		h.frame(b.header[:], fr, 0, 0, total, 0)
		tcp = header.TCP(fr.Header[h.l4:])
		tcp.SetFlags(uint8(header.TCPFlagAck))
		return true
	}
	mss, most := pkt.GSOOptions.MSS, total
	if pkt.GSOOptions.Type == stack.GSONone {
		mss = 0
	}
	if mss > 0 {
		f.mss = int(mss)
		if q.s.cut {
			mss, most = 0, f.mss
		}
	}
	for pos := max(skip, int(int64(f.una)-base)); pos < total; {
		b, fr := q.next()
		linear, device, lo, hi := f.place(uint64(base+int64(pos)), min(total-pos, most), b.ranges[:0])
		n := linear
		for _, r := range device {
			n += int(r.Len)
		}
		b.pos, b.n = pos, n
		h.frame(b.header[:], fr, pos, n, total, mss)
		var ok bool
		if fr.Linear, ok = dataAt(pkt, h.n, pos, linear, &b.scratch); !ok { // it would not be the stream's
			return false
		}
		if len(device) > 0 {
			fr.Device = device
			fr.Cookie = q.cookie(f, lo, hi)
			f.addInFlight(lo, hi, 1)
		} else {
			fr.Cookie = loaded
		}
		pos += n
	}
	return true
}

func (q *txQueue) cookie(f *flow, lo, hi uint32) uint64 {
	if len(q.idle) == 0 {
		q.flights = append(q.flights, flight{})
		q.idle = append(q.idle, uint32(len(q.flights)))
	}
	c := q.idle[len(q.idle)-1]
	q.idle = q.idle[:len(q.idle)-1]
	q.flights[c-1] = flight{f, lo, hi}
	return uint64(c)
}

// sent notes what an outgoing segment says.
func (f *flow) sent(tcp header.TCP, n int) {
	flags := tcp.Flags()
	if f.irsKnown && flags.Contains(header.TCPFlagAck) && !flags.Contains(header.TCPFlagRst) {
		if off := f.rxOffset(tcp.AckNumber()); off > int64(f.acked) {
			f.acked = uint64(off)
			f.ahead = max(f.ahead, f.acked)
		}
		f.adv = uint32(tcp.WindowSize())
	}
	if flags.Contains(header.TCPFlagSyn) {
		f.scale[0], f.answered = wscale(tcp), flags.Contains(header.TCPFlagAck)
		return
	}
	if end := f.txOffset(tcp.SequenceNumber()) + int64(n); end > int64(f.nxt) && n > 0 {
		f.nxt = uint64(end)
	}
	if flags.Contains(header.TCPFlagFin) {
		f.finSent = true
	}
}

// narrow makes the window that an outgoing segment advertises one unit of the window scale smaller.
//
// Netstack takes nothing back of what it has advertised, but in the header it is rounded down: the edge that a peer
// sees moves to the left by up to a unit. Linux takes what is sent up to the old edge all the same. Netstack drops it
// if the window is closed by that (tcp/rcv.go: acceptable), and a short segment that the peer was free to send is sent
// twice. With a unit less, no segment promises what lies behind the edge that a later one is rounded to.
//
// Netstack opens a closed window when an MSS fits in again, and this is not to close one that it takes to be open: so
// two units have to be less than the least MSS (RFC 9293, 3.7.1). They are in windows of up to 16 MiB.
func (f *flow) narrow(tcp header.TCP) {
	const least = 536
	unit := 1 << f.shift()
	if w := tcp.WindowSize(); w > 0 && unit > 1 && 2*unit < least && !tcp.Flags().Contains(header.TCPFlagSyn) {
		tcp.SetWindowSize(w - 1)
	}
}

// shift is the scale of the windows that we advertise: both ends have to offer theirs, and who answers a SYN offers
// what was offered to him (RFC 7323, 2.2). What that SYN said came before there was a flow.
func (f *flow) shift() uint8 {
	if f.scale[0] > 0 && (f.scale[1] >= 0 || f.answered) {
		return uint8(f.scale[0])
	}
	return 0
}

// place says where up to n bytes of the stream from off on lie: first linear bytes that netstack has, then device
// memory, as far as that goes into one frame. lo and hi are the sends of the device memory.
func (f *flow) place(off uint64, n int, dst []driver.Range) (linear int, device []driver.Range, lo, hi uint32) {
	i, j := 0, f.parts.len() // the first part that ends behind off
	for i < j {
		if m := int(uint(i+j) / 2); f.parts.at(m).end > off {
			j = m
		} else {
			i = m + 1
		}
	}
	if i == f.parts.len() {
		return n, nil, 0, 0
	}
	end := off + uint64(n)
	p := f.parts.at(i)
	if p.start >= end {
		return n, nil, 0, 0
	}
	if p.start > off {
		linear = int(p.start - off)
		off = p.start
	}
	device, lo = dst, p.send
	for ; i < f.parts.len() && off < end; i++ {
		p := f.parts.at(i)
		if p.start > off {
			break
		}
		at, l := p.off+(off-p.start), uint32(min(p.end, end)-off)
		if k := len(device) - 1; k >= 0 && device[k].GPU == p.gpu && device[k].Off+uint64(device[k].Len) == at {
			device[k].Len += l
		} else if len(device) == cap(device) {
			break
		} else {
			device = append(device, driver.Range{GPU: p.gpu, Off: at, Len: l})
		}
		hi = p.send
		off += uint64(l)
	}
	return linear, device, lo, hi
}
