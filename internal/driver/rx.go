package driver

import (
	"fmt"
	"sync/atomic"

	"vnic.dev/vnic/internal/control"
	"vnic.dev/vnic/splitter"
	"vnic.dev/vnic/virtq"
)

// Sizes in bytes, and maxBatch in frames.
const (
	hostBuf   = 4096
	maxFrame  = 1 << 17 // a received frame that is longer is dropped, as is one with more payload in GPU memory
	arenaSize = 4 * maxFrame
	maxBatch  = 64
)

// rxQueue is a receive queue, owned by the polling goroutine.
//
// A host queue has buffers in host memory; a frame may use several (VIRTIO_NET_F_MRG_RXBUF). Any
// other queue has no buffers until it is bound.
type rxQueue struct {
	n     *NIC
	index int
	ring  *ring
	host  []memory // buffers of a host queue, by cookie; nil for other queues
	hdrs  []memory // header buffers, if the queue is or was bound
	split *split   // state of a bound queue; nil: not bound

	used []virtq.Used
	have int // how many chains at the start of used were returned and are not processed

	refill atomic.Bool
	stats  counters // written by open, and then by the polling goroutine
}

func newRxQueue(n *NIC, index int) (*rxQueue, error) {
	perTable := 2
	for perTable < n.opts.PagesPerChain+1 {
		perTable *= 2
	}
	r, err := newRing(n.t, 2*index, uint16(n.opts.RingSize), n.features, perTable)
	if err != nil {
		return nil, err
	}
	q := &rxQueue{n: n, index: index, ring: r, used: make([]virtq.Used, r.config.Size)}
	if index < n.opts.HostQueues {
		if q.host, err = slab(n.t, int(r.config.Size), hostBuf); err != nil {
			return nil, err
		}
	}
	return q, n.t.setupQueue(r.vq, r.addrs)
}

func (q *rxQueue) postHost() error {
	for i := range q.host {
		if err := q.addHost(uint32(i)); err != nil {
			return err
		}
	}
	q.publish()
	return nil
}

func (q *rxQueue) addHost(i uint32) error {
	m := &q.host[i]
	buf := [1]virtq.Buf{{Addr: m.addr, Len: uint32(len(m.b))}}
	return q.ring.Add(nil, buf[:], i)
}

func (q *rxQueue) publish() {
	if q.ring.Publish() {
		q.n.t.kick(q.ring.vq)
		q.stats.kicks.Add(1)
	}
}

func (q *rxQueue) poll(b *batch) (worked bool, err error) {
	if q.host == nil && q.split == nil {
		return false, nil
	}
	k, err := q.ring.Poll(q.used[q.have:])
	q.have += k
	if err != nil {
		return false, fmt.Errorf("%w: %w", ErrBroken, err)
	}
	if q.split != nil {
		return q.pollSplit(b, k > 0)
	}
	if k == 0 {
		return false, nil
	}
	for done := 0; ; {
		n, err := q.takeHost(b, q.used[done:q.have])
		if err != nil {
			return false, err
		}
		if n == 0 {
			q.have = copy(q.used, q.used[done:q.have])
			return true, nil
		}
		b.deliver(q)
		for _, u := range q.used[done : done+n] {
			if err := q.addHost(u.Cookie); err != nil {
				return false, err
			}
		}
		done += n
		q.publish()
	}
}

func (q *rxQueue) takeHost(b *batch, used []virtq.Used) (n int, err error) {
	for n < len(used) && b.hasSpace() {
		first := used[n]
		piece := q.host[first.Cookie].b[:first.Len] // virtq has checked that Len is within the buffer
		var h netHdr
		count, err := q.readHeader(&h, piece, len(piece), "buffer")
		if err != nil || count > len(used)-n {
			return n, err
		}
		frame := piece[netHdrLen:]
		ok := true
		if count > 1 {
			frame, ok = b.join(frame, func(i int) []byte {
				u := used[n+i]
				return q.host[u.Cookie].b[:u.Len]
			}, count)
		}
		n += count
		if err := q.addFrame(b, &h, frame, ok); err != nil {
			return n, err
		}
	}
	return n, nil
}

// readHeader decodes the virtio_net_hdr in b, the start of a buffer or chain to which the device wrote n bytes, and
// returns how many buffers (or chains) the frame uses.
func (q *rxQueue) readHeader(h *netHdr, b []byte, n int, buffer string) (count int, err error) {
	if n < netHdrLen {
		return 0, fmt.Errorf("%w: a %s with %d bytes, less than virtio_net_hdr", ErrBroken, buffer, n)
	}
	h.decode((*[netHdrLen]byte)(b))
	if h.numBuffers == 0 || int(h.numBuffers) > len(q.used) {
		return 0, fmt.Errorf("%w: a frame in %d %ss, the ring has %d", ErrBroken, h.numBuffers, buffer, len(q.used))
	}
	return int(h.numBuffers), nil
}

// addFrame adds a frame to b, or passes a control frame of queue 0 to the control client. It drops a frame that is
// shorter than an Ethernet header, or for which ok is false.
func (q *rxQueue) addFrame(b *batch, h *netHdr, frame []byte, ok bool) error {
	if !ok || len(frame) < splitter.EthLen {
		q.stats.dropped.Add(1)
		return nil
	}
	if q.index == 0 && control.IsControl(frame) {
		q.stats.control.Add(1)
		q.n.ctl.Receive(append([]byte(nil), frame...)) // a copy: the device could change it between check and use
		return nil
	}
	f := b.next()
	*f = RxFrame{Queue: q.index, Header: frame}
	if err := h.offload(&q.n.offloads, f); err != nil {
		b.drop()
		return err
	}
	q.stats.frames.Add(1)
	q.stats.bytes.Add(uint64(len(frame)))
	return nil
}

func (q *rxQueue) enableCall() (more bool) {
	if q.host == nil && q.split == nil {
		return false
	}
	return q.ring.EnableCall() || q.split != nil && q.refill.Load()
}

func (q *rxQueue) disableCall() {
	if q.host != nil || q.split != nil {
		q.ring.DisableCall()
	}
}
