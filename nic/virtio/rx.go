package virtio

import (
	"errors"
	"os"
	"sync"
	"sync/atomic"

	"vnic.dev/vnic/dma"
	"vnic.dev/vnic/nic"
	"vnic.dev/vnic/virtq"
	"vnic.dev/vnic/wire"
)

// maxChains is how many chains one frame may take (MRG_RXBUF): a 64 KiB frame in buffers of 1 KiB.
const maxChains = 64

// rxQueue is a receive virtqueue, an nic.RxQueue. Everything below mu is used under it.
type rxQueue struct {
	dev   *Device
	index int                     // of the vring
	call  atomic.Pointer[os.File] // nil: the driver polls

	mu       sync.Mutex
	vq       *virtq.Device // nil: stopped
	kick     int           // -1: stopped
	enabled  bool
	started  bool // kicked once: before that the ring is not to be touched (vhost-user.rst, "Ring states")
	err      error
	mrg      bool
	staged   bool
	short    int // how many chains were not enough, when a frame last found too few
	waiters  []wire.Waker
	chains   [maxChains]virtq.Chain
	buffers  []dma.Segment // of all chains of a frame, in order
	header   []dma.Segment
	payload  []dma.Segment
	scratch  [netHdrLen + nic.MaxHeader]byte
	noBuffer counter // frames that met too few buffers, each time they did
}

var _ nic.RxQueue = (*rxQueue)(nil)

func newRxQueue(d *Device, index int) *rxQueue {
	return &rxQueue{dev: d, index: index, kick: -1}
}

// Lock implements nic.RxQueue.
func (q *rxQueue) Lock() { q.mu.Lock() }

// Unlock implements nic.RxQueue.
func (q *rxQueue) Unlock() { q.mu.Unlock() }

// Put implements nic.RxQueue.
func (q *rxQueue) Put(m *nic.Mover, f *nic.Frame) nic.Result {
	switch {
	case q.vq == nil || q.err != nil:
		return nic.PutStopped
	case !q.enabled || !q.started:
		return nic.PutDisabled
	}
	var n int
	var res nic.Result
	if f.Split {
		n, res = q.putSplit(m, f)
	} else {
		n, res = q.putWhole(m, f)
	}
	if res != nic.PutTaken {
		if n > 0 && q.err == nil {
			q.vq.Rewind(n)
		}
		if res == nic.PutNoBuffer {
			q.short = n
			q.noBuffer.add(1)
		}
		return res
	}
	q.staged = true
	return nic.PutTaken
}

// putWhole writes a frame as one run of bytes: virtio_net_hdr and the frame (virtio 1.3, 5.1.6.4). It returns how many
// chains were peeked, and has committed them if the frame is taken.
func (q *rxQueue) putWhole(m *nic.Mover, f *nic.Frame) (n int, res nic.Result) {
	head := netHdrLen + uint32(len(f.Header))
	need := head + f.PayloadLen
	q.buffers = q.buffers[:0]
	for room := uint32(0); room < need; n++ {
		if n == maxChains || n == 1 && !q.mrg {
			return n, nic.PutTooBig
		}
		c, res := q.next(n)
		if res != nic.PutTaken {
			return n, res
		}
		if c.InLen < netHdrLen && n == 0 || c.InLen == 0 {
			q.fail(errShortBuffer)
			return n, nic.PutStopped
		}
		q.buffers = append(q.buffers, c.In...)
		room += c.InLen
	}
	q.header = dma.Cut(q.header[:0], q.buffers, 0, uint64(head))
	q.payload = dma.Cut(q.payload[:0], q.buffers, uint64(head), uint64(f.PayloadLen))
	if res := q.write(m, f, uint32(len(f.Header)), n); res != nic.PutTaken {
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
	need := f.PayloadLen - inHeader
	q.payload = q.payload[:0]
	var rooms [maxChains]uint32
	for room := uint32(0); n == 0 || room < need; n++ {
		if n == maxChains || n == 1 && !q.mrg {
			return n, nic.PutTooBig
		}
		c, res := q.next(n)
		if res != nic.PutTaken {
			return n, res
		}
		if c.InFirst < netHdrLen+f.HeaderLen || need > 0 && c.InLen == c.InFirst {
			q.fail(errNotSplit)
			return n, nic.PutStopped
		}
		k := min(need-room, c.InLen-c.InFirst)
		q.payload = dma.Cut(q.payload, c.In, uint64(c.InFirst), uint64(k))
		rooms[n] = k
		room += k
	}
	q.header = dma.Cut(q.header[:0], q.chains[0].In, 0, uint64(netHdrLen+f.HeaderLen))
	if res := q.write(m, f, f.HeaderLen, n); res != nic.PutTaken {
		return n, res
	}
	for i := range n {
		k := rooms[i]
		if i == 0 {
			k += netHdrLen + f.HeaderLen
		}
		q.vq.Commit(q.chains[i].Head, k)
	}
	return n, nic.PutTaken
}

// Return implements nic.Returner: every posted chain comes back with used.len 0.
func (q *rxQueue) Return() {
	if q.vq == nil || q.err != nil || !q.started {
		return
	}
	for {
		c := &q.chains[0]
		ok, err := q.vq.Peek(c)
		if err != nil {
			q.fail(err)
			return
		}
		if !ok {
			return
		}
		q.vq.Commit(c.Head, 0)
		q.staged = true
	}
}

// next peeks chain n of a frame.
func (q *rxQueue) next(n int) (*virtq.Chain, nic.Result) {
	c := &q.chains[n]
	ok, err := q.vq.Peek(c)
	switch {
	case err != nil:
		q.fail(err)
		return nil, nic.PutStopped
	case !ok:
		return nil, nic.PutNoBuffer
	case c.OutLen > 0:
		q.fail(errReadable)
		return nil, nic.PutStopped
	}
	return c, nic.PutTaken
}

// write fills the places found: virtio_net_hdr and headers to q.header, payload to q.payload.
func (q *rxQueue) write(m *nic.Mover, f *nic.Frame, hlen uint32, buffers int) nic.Result {
	var h netHdr
	h.describe(&f.Meta, hlen)
	if q.mrg {
		h.numBuffers = uint16(buffers)
	}
	h.encode((*[netHdrLen]byte)(q.scratch[:netHdrLen]))
	n := netHdrLen + copy(q.scratch[netHdrLen:], f.Header)
	err := m.Header(q.header, q.scratch[:n])
	src := f.Payload
	if extra := hlen - uint32(len(f.Header)); extra > 0 && err == nil { // a frame that goes to the header buffer whole
		q.header = dma.Cut(q.header[:0], q.chains[0].In, uint64(n), uint64(extra))
		err = m.Whole(q.header, src)
		src = nil
	}
	if err == nil && len(src) > 0 {
		err = m.Payload(q.payload, src)
	}
	if err == nil {
		return nic.PutTaken
	}
	var fault *dma.FaultError
	if errors.As(err, &fault) && !q.dev.space.Has(fault.File) {
		return nic.PutFault // the sender's
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
	call = q.vq.Publish()
	if err := q.vq.Err(); err != nil && q.err == nil {
		q.fail(err)
	}
	return call
}

// Call implements nic.RxQueue.
func (q *rxQueue) Call() { signal(q.call.Load()) }

// Arm implements wire.Waitable.
func (q *rxQueue) Arm(w wire.Waker) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.vq == nil || q.err != nil || !q.enabled || !q.started {
		return false
	}
	// The chains that are there were not enough: wait for one more than there were.
	if q.vq.EnableKickBeyond(q.short) {
		return false
	}
	q.waiters = append(q.waiters, w)
	return true
}

// Disarm implements wire.Waitable.
func (q *rxQueue) Disarm(w wire.Waker) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for i := range q.waiters {
		if q.waiters[i] == w {
			q.waiters = append(q.waiters[:i], q.waiters[i+1:]...)
			return
		}
	}
}

// wake wakes all who wait for buffers; the caller holds the lock.
func (q *rxQueue) wake() {
	for _, w := range q.waiters {
		w.Wake()
	}
	clear(q.waiters)
	q.waiters = q.waiters[:0]
}

// fail stops the queue until the driver or the frontend sets it up again; the caller holds the lock. The watcher logs it.
func (q *rxQueue) fail(err error) {
	q.err = err
	q.wake()
	q.dev.watcher.failed(q.index)
}
