package virtio

import (
	"vnic.dev/vnic/dma"
	"vnic.dev/vnic/internal/nic"
)

// sabotaged gives what is to be in the place of a receive queue, if the NIC is to have a fault in its rings. Split
// virtqueues have no generations.
func sabotaged(q *rxQueue, s *nic.Sabotage) nic.RxQueue {
	if s.RingFault() == nic.RingEnd {
		return &earlyEnd{q, s.Occasions()}
	}
	return q
}

// earlyEnd is a receive queue that says of a frame in several buffers that it has one: num_buffers (virtio 1.3,
// 5.1.6.4).
type earlyEnd struct {
	*rxQueue
	occasions nic.Occasions
}

// numBuffers is where num_buffers lies in virtio_net_hdr.
const numBuffers = 10

// Put implements nic.RxQueue.
func (q *earlyEnd) Put(m *nic.Mover, f *nic.Frame) (res nic.Result) {
	if res = q.rxQueue.Put(m, f); res != nic.PutTaken || q.peeked < 2 {
		return res
	}
	if q.occasions.Due() {
		at := dma.Cut(nil, q.chains[0].In, numBuffers, 2)
		_, _ = m.Copier().Write(at, []byte{1, 0}) // memory that has gone meanwhile is nobody's any more
	}
	q.occasions.Pass()
	return res
}
