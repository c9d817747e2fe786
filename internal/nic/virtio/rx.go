package virtio

import (
	"slices"

	"vnic.dev/vnic/dma"
	"vnic.dev/vnic/internal/control"
	"vnic.dev/vnic/internal/nic"
	"vnic.dev/vnic/splitter"
	"vnic.dev/vnic/virtq"
)

// maxPieces is how many segments and empty buffers the chains of one frame may have before another one is taken
// (MRG_RXBUF): as many segments as one chain may have. A chain counts for chainPieces at least, as it takes so much
// longer than a segment: a frame may lie in 1025 chains, about as many as QEMU's longest ring has, and 64 KiB in
// buffers of 64 bytes.
const (
	maxPieces   = virtq.MaxSegments
	chainPieces = 4
)

// keepChains is how many Chains are kept for the next frame: as many as a ring of QEMU's has. More are kept until
// keepFrames in a row needed no more: long frames and short ones may come in turn.
const (
	keepChains = 256
	keepFrames = 64
)

// maxOwn is the most that a packet has in Header: a frame of the control channel, which comes from no guest.
const maxOwn = max(nic.MaxHeader, control.MaxFrame)

// rxQueue is a receive virtqueue, an nic.RxQueue. Everything below RxBase is used under its lock.
type rxQueue struct {
	vring // its ring and its kick are used under RxBase's lock
	nic.RxBase
	kicks      nic.EventReader
	enabled    bool
	started    bool // kicked once: before that the ring is not to be touched (vhost-user.rst, "Ring states")
	hadBuffers bool // it has had buffers. QEMU's first kick says nothing of them, so kicks are wanted until then
	mrg        bool // VIRTIO_NET_F_MRG_RXBUF
	csum       bool // VIRTIO_NET_F_GUEST_CSUM
	staged     bool
	short      int  // how many chains were not enough, when a frame last found too few
	faulty     bool // this frame has found a chain whose memory cannot be reached: the last that was peeked
	awaited    awaited
	remembers  bool          // there is a refusal
	refused    [2]refusal    // of a whole frame, of a split one
	room       uint32        // in the chains of a frame that is refused: see roomFor
	chains     []virtq.Chain // as many as a frame needed
	peeked     int           // how many of chains the last frame needed
	few        int           // how many frames in a row needed keepChains at most, if there are more
	buffers    []dma.Segment // of all chains of a frame, in order
	header     []dma.Segment
	payload    []dma.Segment
	scratch    [maxNetHdr + maxOwn]byte // virtio_net_hdr and headers; answers to commands are all header
}

// awaited says what a kick was asked for: more chains than n, from base on.
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
		n++ // that chain
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
			res = nic.PutTooBig // all that there can be is too little
		}
	}
	if n > 0 && !f.Merged && (res == nic.PutNoBuffer || res == nic.PutTooBig) {
		q.remember(f, n, all, res)
	}
	return res
}

// giveUp returns chains unused that are too little for a frame, though it may have no more of them, or that end with
// one whose memory cannot be reached: with used.len 0, for drivers a frame that is too short. (Linux counts it in
// rx_length_errors, and posts others.) The driver may make its buffers as small as that (5.1.6.3.1), and does not know
// what memory is shared, so the queue is not failed: any sender could stop it. And they do not stay, else frames that
// find them walk over them again and again. One chain that is too little does stay without MRG_RXBUF, as with Linux's
// vhost and QEMU: it is no longer a walk than for any frame, and what such drivers make of an empty frame is not known.
func (q *rxQueue) giveUp(n int) {
	for i := range n {
		q.vq.Commit(q.chains[i].Head, 0)
	}
	q.staged = true
	q.forget()
}

// roomFor is how much room a frame needs in its chains: a split one for the payload in their payload buffers.
func (q *rxQueue) roomFor(f *nic.Frame) uint32 {
	if f.Split {
		return f.PayloadLen - (f.HeaderLen - uint32(len(f.Header))) // but for what belongs to the header buffer
	}
	return q.hdrLen + uint32(len(f.Header)) + f.PayloadLen
}

// trim lets go of the lists of chains that the frame before needed and this one, of n, did not; of lists of very many
// chains when keepFrames did not.
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
	if n < 2 { // which do without
		q.buffers = dma.Reuse(q.buffers[:0])
	}
}

// reuse is dma.Reuse, but keeps long lists while those of chains are kept.
func (q *rxQueue) reuse(segs []dma.Segment) []dma.Segment {
	if len(q.chains) > keepChains {
		return segs[:0]
	}
	return dma.Reuse(segs)
}

// begin starts the ring if it has been kicked.
func (q *rxQueue) begin() bool {
	if !q.kicks.Consume(q.kick) {
		return false
	}
	q.started = true
	q.suppressKicks()
	return true
}

// suppressKicks asks for no more kicks, once there are buffers.
func (q *rxQueue) suppressKicks() {
	switch {
	case q.hadBuffers:
		q.vq.DisableKick()
	case q.vq.EnableKick(): // there are some
		q.hadBuffers = true
		q.vq.DisableKick()
		q.dev.requestRSS()
	}
}

// used says whether the driver uses the queue.
func (q *rxQueue) used() bool {
	q.Lock()
	defer q.Unlock()
	return q.vq != nil && q.enabled && q.hadBuffers
}

// kicked is called by the monitor when the driver has kicked the queue.
func (q *rxQueue) kicked() {
	q.Lock()
	defer q.Unlock()
	switch {
	case q.vq == nil:
	case !q.started:
		q.begin() // not if this kick was for a ring before this one
	default:
		q.kicks.Consume(q.kick)
		q.suppressKicks()
		q.WakeNext()
	}
}

// putWhole writes a frame as one run of bytes: virtio_net_hdr and the frame (virtio 1.3, 5.1.6.4). It returns how many
// chains were peeked, and has committed them if the frame is taken.
func (q *rxQueue) putWhole(m *nic.Mover, f *nic.Frame) (n int, res nic.Result) {
	need := q.roomFor(f)
	for room, pieces := uint32(0), 0; room < need; n++ {
		c, res := q.next(n, pieces)
		if res != nic.PutTaken {
			q.room = room
			return n, res
		}
		pieces += piecesOf(c)
		if c.InLen < q.hdrLen { // also of those that follow (5.1.6.3.1)
			q.fail(errShortBuffer)
			return n + 1, nic.PutStopped
		}
		room += min(need-room, c.InLen) // else chains of 4 GiB would make it less
		switch n {
		case 0: // nearly always the only one
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
	hlen := uint32(0)                       // unsplit: a driver that expects split can tell
	if f.Meta.GSOType != splitter.GSONone { // a receiver's hint (5.1.6.4.1)
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

// putSplit writes headers to the header buffer of the first chain and payload to the payload buffers of as many as it
// needs. A chain's first descriptor is its header buffer; used.len counts virtio_net_hdr, headers and payload in the
// first chain, payload alone in the others, whose header buffers stay as they are.
func (q *rxQueue) putSplit(m *nic.Mover, f *nic.Frame) (n int, res nic.Result) {
	inHeader := f.HeaderLen - uint32(len(f.Header)) // payload that belongs to the header buffer: of a frame without TCP
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
	if inHeader > 0 { // the frame goes to the header buffer whole
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

// Return implements nic.Returner: chains come back with used.len 0. They are not looked at.
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
		if ok, err := q.vq.Peek(&c); !ok || err != nil { // a frame meets the same error, and stops the queue
			break
		}
		visit(c.In)
		pieces += max(1, len(c.In)+len(c.Out)+c.Empty)
	}
	q.vq.Rewind(n)
}

// piecesOf is how much of maxPieces a chain takes.
func piecesOf(c *virtq.Chain) int { return max(chainPieces, len(c.In)+c.Empty) }

// next peeks chain n of a frame, those before which take so much of maxPieces.
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

// headers gives virtio_net_hdr and the headers of a frame, which is no longer than maxOwn.
func (q *rxQueue) headers(f *nic.Frame, hlen uint32, buffers int) []byte {
	if !q.mrg {
		buffers = 1
	}
	(*netHdr)(q.scratch[:]).describe(&f.Meta, hlen, q.csum, buffers)
	return q.scratch[:int(q.hdrLen)+copy(q.scratch[q.hdrLen:], f.Header)] // a legacy one's over num_buffers
}

// result says what became of a frame by the error of the move, and stops the queue if that is its own.
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
	call = q.calls(q.vq.Publish() || q.owed)
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
	// The chains that are there were not enough: wait for one more than there were.
	if q.vq.EnableKickBeyond(q.short) {
		return false
	}
	// Senders that waited for fewer chains get no kick for those: they look again.
	if at := (awaited{q.vq.Base(), q.short}); at != q.awaited {
		q.awaited = at
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

// fail stops the queue until the driver or the frontend sets it up again.
func (q *rxQueue) fail(err error) {
	if q.Fail(err) {
		q.dev.recordStop(q.index, err) // before anybody sets it up again
	}
}

// Stopped implements nic.RxModel.
func (q *rxQueue) Stopped(err error) {
	q.dev.failed(q.index, err)
	q.fault.fire()
}
