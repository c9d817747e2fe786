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
	maxRanges  = 17   // most pieces of device memory in a frame, as Linux's default MAX_SKB_FRAGS
	maxBacklog = 4096 // most packets that wait for room on a ring
)

// txQueue turns netstack's packets into frames.
//
// A goroutine takes mu after netstack's locks and before a flow's.
type txQueue struct {
	s     *Stack
	queue int

	waiting atomic.Int64 // TCP frames with payload that the NIC has accepted and Completed has not reported

	mu      sync.Mutex
	header  txHeader
	frames  []txFrame // headers and ranges of the current packet's frames
	out     []driver.TxFrame
	flights []flight // indexed by cookie - 1
	idle    []uint32 // free cookies
	backlog deque[backlogged]
}

type txFrame struct {
	header  [maxHeader + header.IPv4MaximumHeaderSize]byte
	ranges  [maxRanges]driver.Range
	scratch []byte
	pos, n  int // set by payload: the frame has bytes [pos, pos+n) of the packet's payload
}

// flight is a frame with ranges of device memory that the device may still read. lo and hi are the numbers of the first
// and the last send with bytes in the frame.
type flight struct {
	flow   *flow // nil: the cookie is free
	lo, hi uint32
}

// backlogged is a packet that waits for room on the ring. If it is TCP with payload, its next frame begins at payload
// byte skip, or later if the peer has acknowledged more.
type backlogged struct {
	pkt  *stack.PacketBuffer
	skip int
}

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

// putCookie frees a cookie, if it is in use.
func (q *txQueue) putCookie(cookie uint64) {
	fl := q.flights[cookie-1]
	if fl.flow == nil {
		return
	}
	q.flights[cookie-1] = flight{}
	q.idle = append(q.idle, uint32(cookie))
	fl.flow.txDone(fl.lo, fl.hi)
}

// flush sends as much of the backlog as fits.
func (q *txQueue) flush() {
	for q.backlog.len() > 0 {
		b := q.backlog.elem(0)
		skip, all := q.transmit(b.pkt, b.skip)
		if !all {
			b.skip = skip
			return
		}
		q.backlog.pop().pkt.DecRef()
	}
}

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

// transmit puts a packet's frames, from payload byte skip on, on the ring, or drops them. If not all fit, all is false,
// and next is the payload byte with which the rest begins.
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
		case err != nil: // the frame is bad, or the NIC is gone
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

// Cookies of frames without device memory: loaded for TCP frames with payload, bare for others.
const (
	bare   = ^uint64(0)
	loaded = bare - 1
)

// count adds to waiting how many of frames are TCP with payload.
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

func (q *txQueue) takeBack(frames []driver.TxFrame) {
	for i := range frames {
		if len(frames[i].Device) > 0 {
			q.putCookie(frames[i].Cookie)
		}
	}
}

// next appends an empty frame to out.
func (q *txQueue) next() (*txFrame, *driver.TxFrame) {
	i := len(q.out)
	if i == len(q.frames) {
		q.frames = append(q.frames, make([]txFrame, max(1, i))...)
		for j := range i { // out has slices of the old frames' arrays
			q.out[j].Header = q.frames[j].header[:len(q.out[j].Header)]
			if len(q.out[j].Device) > 0 {
				q.out[j].Device = q.frames[j].ranges[:len(q.out[j].Device)]
			}
		}
	}
	// Each frame has a cookie: each Completed is a chance to flush the backlog.
	q.out = append(q.out, driver.TxFrame{Cookie: bare})
	return &q.frames[i], &q.out[i]
}

// build makes the frames of a packet in out, or returns false if the packet must be dropped.
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
	if f != nil {
		f.mu.Lock()
		defer f.mu.Unlock()
		if q.s.repeat {
			f.refresh(tcp)
			f.remember(pkt, tcp, total)
		}
		f.sent(tcp, total)
		f.narrow(tcp)
	}
	switch {
	case total == 0:
		b, fr := q.next()
		h.frame(b.header[:], fr, 0, 0, 0, 0)
		return true
	case f == nil || f.ended: // nil: the place of the payload is unknown
		return false
	}
	base := f.txOffset(tcp.SequenceNumber())
	if base+int64(total) <= int64(f.una) {
		// A late retransmission, whose memory may have changed, or a probe of netstack: an empty segment below the
		// window makes the peer acknowledge, like a keep-alive (RFC 9293, 3.8.4).
		tcp.SetSequenceNumber(f.iss + uint32(f.una))
		b, fr := q.next()
		h.frame(b.header[:], fr, 0, 0, total, 0)
		tcp = header.TCP(fr.Header[h.l4:])
		tcp.SetFlags(uint8(header.TCPFlagAck))
		return true
	}
	return q.payload(f, pkt, base, max(skip, int(int64(f.una)-base)))
}

// payload makes the frames for a packet's payload from byte pos on; the packet begins at base in the stream. It
// returns false if the packet must be dropped. The caller holds the flow's lock.
func (q *txQueue) payload(f *flow, pkt *stack.PacketBuffer, base int64, pos int) bool {
	h, total := &q.header, pkt.Data().Size()
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
	for pos < total {
		b, fr := q.next()
		linear, device, lo, hi := f.place(uint64(base+int64(pos)), min(total-pos, most), b.ranges[:0])
		n := linear
		for _, r := range device {
			n += int(r.Len)
		}
		b.pos, b.n = pos, n
		h.frame(b.header[:], fr, pos, n, total, mss)
		var ok bool
		if fr.Linear, ok = dataAt(pkt, h.n, pos, linear, &b.scratch); !ok { // a byte is missing, or a placeholder's
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

// narrow reduces the window that an outgoing segment advertises by one unit (1<<shift bytes), if windows are scaled,
// the window is not 0, the segment is not a SYN, and the unit is not too large (below).
//
// The header rounds netstack's window down, so the right edge that a peer sees may move left by up to a unit.
// Netstack drops data up to the old edge if the rounding closes the window (tcp/rcv.go: acceptable). With a
// unit less, the edge that a segment advertises is never beyond the rounded edge of a later segment.
//
// narrow must not close a window that netstack treats as open: two units must be less than IPv4's default MSS
// (RFC 9293, 3.7.1).
func (f *flow) narrow(tcp header.TCP) {
	const least = 536
	unit := 1 << f.shift()
	if w := tcp.WindowSize(); w > 0 && unit > 1 && 2*unit < least && !tcp.Flags().Contains(header.TCPFlagSyn) {
		tcp.SetWindowSize(w - 1)
	}
}

// shift returns the scale of the windows that we advertise, 0 without scaling. Both ends have to offer a scale
// (RFC 7323, 2.2).
func (f *flow) shift() uint8 {
	if f.scale[0] > 0 && (f.scale[1] >= 0 || f.answered) {
		return uint8(f.scale[0])
	}
	return 0
}

// place returns where up to n bytes of the stream from off on are: the first ones, linear in number, in netstack's
// packet, and the next ones in ranges of device memory, which place appends to dst up to its capacity. lo and hi are
// the numbers of the first and the last send with bytes in these ranges.
func (f *flow) place(off uint64, n int, dst []driver.Range) (linear int, device []driver.Range, lo, hi uint32) {
	i, j := 0, f.parts.len() // search the first part that ends after off
	for i < j {
		if m := int(uint(i+j) / 2); f.parts.elem(m).end > off {
			j = m
		} else {
			i = m + 1
		}
	}
	if i == f.parts.len() {
		return n, nil, 0, 0
	}
	end := off + uint64(n)
	p := f.parts.elem(i)
	if p.start >= end {
		return n, nil, 0, 0
	}
	if p.start > off {
		linear = int(p.start - off)
		off = p.start
	}
	device, lo = dst, p.send
	for ; i < f.parts.len() && off < end; i++ {
		p := f.parts.elem(i)
		if p.start > off {
			break
		}
		gpuOff, l := p.off+(off-p.start), uint32(min(p.end, end)-off)
		if k := len(device) - 1; k >= 0 && device[k].GPU == p.gpu && device[k].Off+uint64(device[k].Len) == gpuOff {
			device[k].Len += l
		} else if len(device) == cap(device) {
			break
		} else {
			device = append(device, driver.Range{GPU: p.gpu, Off: gpuOff, Len: l})
		}
		hi = p.send
		off += uint64(l)
	}
	return linear, device, lo, hi
}
