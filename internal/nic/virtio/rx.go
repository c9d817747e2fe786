package virtio

import (
	"slices"

	"vnic.dev/vnic/dma"
	"vnic.dev/vnic/internal/control"
	"vnic.dev/vnic/internal/nic"
	"vnic.dev/vnic/splitter"
	"vnic.dev/vnic/virtq"
)

// maxPieces bounds the chains of one frame (MRG_RXBUF): a queue takes no further chain for a frame when the segments
// and empty buffers of the frame's chains (piecesOf) exceed maxPieces. A chain counts for at least chainPieces, because
// it costs more than a segment.
const (
	maxPieces   = virtq.MaxSegments
	chainPieces = 4
)

// keepChains is the most Chains that the queue keeps for long. Because long and short frames may alternate, it keeps
// a longer list until keepFrames frames in a row needed at most keepChains.
const (
	keepChains = 256
	keepFrames = 64
)

const maxOwn = max(nic.MaxHeader, control.MaxFrame)

// rxQueue is a receive virtqueue. A goroutine that uses the fields below RxBase holds RxBase's lock.
type rxQueue struct {
	vring // RxBase's lock guards the ring and its kick
	nic.RxBase
	kicks      nic.EventReader
	enabled    bool
	started    bool // by a kick, or as it ran before: the device may process the ring (vhost-user.rst, "Ring states")
	hadBuffers bool // the ring had buffers at a kick, or is a resumed one; before, kicks stay on: QEMU kicks an empty ring
	mrg        bool // VIRTIO_NET_F_MRG_RXBUF
	csum       bool // VIRTIO_NET_F_GUEST_CSUM
	staged     bool
	short      int  // how many chains were not enough for a refused frame, as last set by Put or recall; 0: not set
	faulty     bool // the last peeked chain of the frame in Put has unreachable memory
	awaited    awaited
	remembers  bool
	refused    [2]refusal
	room       uint32 // bytes in the chains that were not enough for a frame, counted as in roomFor
	chains     []virtq.Chain
	peeked     int
	few        int // frames in a row that needed at most keepChains, while chains is longer
	buffers    []dma.Segment
	header     []dma.Segment
	payload    []dma.Segment
	scratch    [maxNetHdr + maxOwn]byte
}

// awaited is the ring's position, and the value of rxQueue.short, when AwaitBuffers last returned true.
type awaited struct {
	base virtq.Base
	n    int
}

var (
	_ nic.RxQueue  = (*rxQueue)(nil)
	_ nic.Returner = (*rxQueue)(nil)
	_ nic.Poster   = (*rxQueue)(nil)
)

func newRxQueue(d *Device, index int) *rxQueue {
	q := &rxQueue{chains: make([]virtq.Chain, 16)}
	q.vring.init(d, index)
	q.Init(q)
	return q
}

// Put implements nic.RxQueue.
func (q *rxQueue) Put(m *nic.Mover, f *nic.Frame) nic.Result {
	switch {
	case q.vq == nil || q.Err() != nil:
		return nic.PutStopped
	case !q.enabled || !q.started && !q.begin():
		return nic.PutDisabled
	case len(f.Header) > maxOwn:
		return nic.PutTooBig
	}
	if q.remembers {
		if res, known := q.recall(f); known {
			return res
		}
	}
	var n int
	var res nic.Result
	if f.Split {
		n, res = q.putSplit(m, f)
	} else {
		n, res = q.putWhole(m, f)
	}
	faulty := q.faulty
	if q.faulty = false; faulty {
		n++
	}
	q.trim(n)
	switch {
	case faulty && !f.Merged:
		q.giveUp(n)
		return res
	case res == nic.PutTaken:
		q.staged = true
		q.forget()
		return res
	case res == nic.PutTooBig && q.mrg && !f.Merged:
		q.giveUp(n)
		return res
	}
	q.vq.Rewind(n)
	all := res == nic.PutNoBuffer
	if all {
		q.short = n
		if q.full(n) {
			res = nic.PutTooBig
		}
	}
	if n > 0 && !f.Merged && (res == nic.PutNoBuffer || res == nic.PutTooBig) {
		q.remember(f, n, all, res)
	}
	return res
}

// giveUp returns the n chains of a frame to the driver with used.len 0. The queue goes on: the driver may post
// buffers that are too small for a frame (virtio 1.3, 5.1.6.3.1), and does not know which memory is shared.
func (q *rxQueue) giveUp(n int) {
	for i := range n {
		q.vq.Commit(q.chains[i].Head, 0)
	}
	q.staged = true
	q.forget()
}

// roomFor returns how many bytes of buffers a frame needs: bytes of payload buffers if it is split, else bytes for
// virtio_net_hdr and the whole frame.
func (q *rxQueue) roomFor(f *nic.Frame) uint32 {
	if f.Split {
		return f.PayloadLen - (f.HeaderLen - uint32(len(f.Header))) // without the payload that goes to the header buffer
	}
	return q.hdrLen + uint32(len(f.Header)) + f.PayloadLen
}

// trim frees long segment lists of chains that the last frame needed and this one, with n chains, did not. It cuts
// the list of chains to keepChains after keepFrames frames that needed no more.
func (q *rxQueue) trim(n int) {
	for i := n; i < q.peeked; i++ {
		q.chains[i].Trim()
	}
	q.peeked = n
	if len(q.chains) > keepChains {
		if q.few++; n > keepChains {
			q.few = 0
		}
		if q.few < keepFrames {
			return
		}
		q.chains, q.few = slices.Clone(q.chains[:keepChains]), 0
	}
	if n < 2 {
		q.buffers = dma.Reuse(q.buffers[:0])
	}
}

// reuse is dma.Reuse, but also keeps a long segment list while the list of chains is longer than keepChains.
func (q *rxQueue) reuse(segs []dma.Segment) []dma.Segment {
	if len(q.chains) > keepChains {
		return segs[:0]
	}
	return dma.Reuse(segs)
}

func (q *rxQueue) begin() bool {
	if !q.kicks.Consume(q.kick) {
		return false
	}
	q.started = true
	q.suppressKicks()
	return true
}

func (q *rxQueue) suppressKicks() {
	switch {
	case q.hadBuffers:
		q.vq.DisableKick()
	case q.vq.EnableKick():
		q.hadBuffers = true
		q.vq.DisableKick()
		q.dev.requestRSS()
	}
}

func (q *rxQueue) used() bool {
	q.Lock()
	defer q.Unlock()
	return q.vq != nil && q.enabled && q.hadBuffers
}

func (q *rxQueue) kicked() {
	q.Lock()
	defer q.Unlock()
	switch {
	case q.vq == nil:
	case !q.started:
		q.begin() // begin fails if the kick belonged to the previous ring
	default:
		q.kicks.Consume(q.kick)
		q.suppressKicks()
		q.WakeNext()
	}
}

// putWhole writes virtio_net_hdr and a frame contiguously (virtio 1.3, 5.1.6.4). It returns how many chains it
// peeked, without a faulty one, and has committed them if it returns PutTaken.
func (q *rxQueue) putWhole(m *nic.Mover, f *nic.Frame) (n int, res nic.Result) {
	need := q.roomFor(f)
	for room, pieces := uint32(0), 0; room < need; n++ {
		c, res := q.next(n, pieces)
		if res != nic.PutTaken {
			q.room = room
			return n, res
		}
		pieces += piecesOf(c)
		if c.InLen < q.hdrLen { // an error in later chains, too (5.1.6.3.1)
			q.fail(errShortBuffer)
			return n + 1, nic.PutStopped
		}
		room += min(need-room, c.InLen) // min, as the sum of several InLen may overflow
		switch n {
		case 0:
		case 1:
			q.buffers = append(append(q.reuse(q.buffers), q.chains[0].In...), c.In...)
		default:
			q.buffers = append(q.buffers, c.In...)
		}
	}
	buffers := q.chains[0].In
	if n > 1 {
		buffers = q.buffers
	}
	q.payload = dma.Cut(q.reuse(q.payload), buffers, 0, uint64(need))
	hlen := uint32(0)                       // for hdr_len
	if f.Meta.GSOType != splitter.GSONone { // then hdr_len is a hint for the receiver (5.1.6.4.1)
		hlen = uint32(len(f.Header))
	}
	if res := q.result(m.Whole(q.payload, q.headers(f, hlen, n), f.Payload)); res != nic.PutTaken {
		return n, res
	}
	for i := range n {
		k := min(need, q.chains[i].InLen)
		need -= k
		q.vq.Commit(q.chains[i].Head, k)
	}
	return n, nic.PutTaken
}

// putSplit writes virtio_net_hdr and the headers (of a frame that is not TCP, the whole frame) to the header buffer
// of the first chain, and payload to the payload buffers of as many chains as it needs. A chain's first non-empty
// buffer is its header buffer. used.len counts bytes in the header buffer for the first chain only. The results are
// as in putWhole.
func (q *rxQueue) putSplit(m *nic.Mover, f *nic.Frame) (n int, res nic.Result) {
	inHeader := f.HeaderLen - uint32(len(f.Header)) // payload bytes for the header buffer, only if not TCP
	need := q.roomFor(f)
	q.payload = q.reuse(q.payload)
	for room, pieces := uint32(0), 0; n == 0 || room < need; n++ {
		c, res := q.next(n, pieces)
		if res != nic.PutTaken {
			q.room = room
			return n, res
		}
		pieces += piecesOf(c)
		if c.InFirst < q.hdrLen+HeaderLimit || c.InLen == c.InFirst && need > 0 {
			q.fail(errNotSplit)
			return n + 1, nic.PutStopped
		}
		k := min(need-room, c.InLen-c.InFirst)
		q.payload = dma.Cut(q.payload, c.In, uint64(c.InFirst), uint64(k))
		room += k
	}
	q.header = dma.Cut(dma.Reuse(q.header), q.chains[0].In, 0, uint64(q.hdrLen)+uint64(len(f.Header)))
	if inHeader > 0 { // the whole frame goes to the header buffer
		q.payload = dma.Cut(dma.Reuse(q.payload), q.chains[0].In, uint64(q.hdrLen)+uint64(len(f.Header)), uint64(inHeader))
	}
	err := m.Header(q.header, q.headers(f, f.HeaderLen, n))
	if err == nil && f.PayloadLen > 0 {
		err = m.Payload(q.payload, f.Payload)
	}
	if res := q.result(err); res != nic.PutTaken {
		return n, res
	}
	head := q.hdrLen + f.HeaderLen
	for i := range n {
		c := &q.chains[i]
		k := min(need, c.InLen-c.InFirst)
		need -= k
		q.vq.Commit(c.Head, head+k)
		head = 0
	}
	return n, nic.PutTaken
}

// Return implements nic.Returner, without reading the chains' descriptors.
func (q *rxQueue) Return(n int) (returned int) {
	if q.vq == nil || q.Err() != nil || !q.started && !q.begin() {
		return 0
	}
	q.forget()
	returned, err := q.vq.ReturnUnused(n)
	q.staged = q.staged || returned > 0
	if err != nil {
		q.fail(err)
	}
	return returned
}

// Posted implements nic.Poster.
func (q *rxQueue) Posted(limit int, visit func([]dma.Segment)) {
	if q.vq == nil || !q.enabled || q.Err() != nil || !q.started && !q.begin() {
		return
	}
	var c virtq.Chain
	n := 0
	for pieces := 0; pieces < limit; n++ {
		if ok, err := q.vq.Peek(&c); !ok || err != nil { // the next Put will meet the same error
			break
		}
		visit(c.In)
		pieces += max(1, len(c.In)+len(c.Out)+c.Empty)
	}
	q.vq.Rewind(n)
}

func piecesOf(c *virtq.Chain) int { return max(chainPieces, len(c.In)+c.Empty) }

// next peeks chain n of a frame, counted from 0. pieces is the sum of piecesOf over the frame's previous chains.
func (q *rxQueue) next(n, pieces int) (*virtq.Chain, nic.Result) {
	if n == 1 && !q.mrg || pieces > maxPieces {
		return nil, nic.PutTooBig
	}
	c, res := q.peek(n)
	switch {
	case res != nic.PutTaken:
	case c.Fault != nil:
		q.faulty = true
		q.unreached(c.Fault)
		return nil, nic.PutFault
	case c.OutLen > 0:
		q.vq.Rewind(1)
		q.fail(errReadable)
		return nil, nic.PutStopped
	}
	return c, res
}

func (q *rxQueue) peek(n int) (*virtq.Chain, nic.Result) {
	if n == len(q.chains) {
		q.chains = append(q.chains, make([]virtq.Chain, n)...)
	}
	c := &q.chains[n]
	switch ok, err := q.vq.Peek(c); {
	case err != nil:
		q.fail(err)
		return nil, nic.PutStopped
	case !ok:
		return nil, nic.PutNoBuffer
	}
	return c, nic.PutTaken
}

func (q *rxQueue) headers(f *nic.Frame, hlen uint32, buffers int) []byte {
	if !q.mrg {
		buffers = 1
	}
	(*netHdr)(q.scratch[:]).describe(&f.Meta, hlen, q.csum, buffers)
	return q.scratch[:int(q.hdrLen)+copy(q.scratch[q.hdrLen:], f.Header)] // a legacy header ends before num_buffers
}

// result returns the Result for a copy that ended with err. An error that the sender did not cause stops the queue.
func (q *rxQueue) result(err error) nic.Result {
	switch {
	case err == nil:
		return nic.PutTaken
	case nic.SenderFault(err, q.dev.space):
		return nic.PutFault
	}
	q.fail(err)
	return nic.PutStopped
}

// Flush implements nic.RxQueue.
func (q *rxQueue) Flush() (call bool) {
	if !q.staged || q.vq == nil {
		return false
	}
	q.staged = false
	call = q.shouldCall(q.vq.Publish() || q.owed)
	if err := q.vq.Err(); err != nil {
		q.fail(err)
	}
	return call
}

// Call implements nic.RxQueue.
func (q *rxQueue) Call() { q.call.fire() }

// AwaitBuffers implements nic.RxModel.
func (q *rxQueue) AwaitBuffers() bool {
	if q.vq == nil || !q.enabled || !q.started {
		return false
	}
	if q.vq.EnableKickBeyond(q.short) {
		return false
	}
	// With VIRTIO_F_EVENT_IDX the kick comes only beyond q.short chains: a sender that may need fewer is woken now.
	if state := (awaited{q.vq.Base(), q.short}); state != q.awaited {
		q.awaited = state
		if q.short > 0 {
			q.WakeNext()
		}
	}
	return true
}

// Buffers implements nic.RxModel.
func (q *rxQueue) Buffers() int {
	if q.vq == nil {
		return 0
	}
	return q.vq.Available()
}

func (q *rxQueue) fail(err error) {
	if q.Fail(err) {
		q.dev.recordStop(q.index, err) // before the driver can set the queue up again
	}
}

// Stopped implements nic.RxModel.
func (q *rxQueue) Stopped(err error) {
	q.dev.failed(q.index, err)
	q.fault.fire()
}
