package virtio

import (
	"vnic.dev/vnic/dma"
	"vnic.dev/vnic/internal/nic"
)

// sabotaged returns q with the fault RingEnd if s has it; else q itself. Split virtqueues have no generation bits, so
// RingGeneration changes nothing.
func sabotaged(q *rxQueue, s *nic.Sabotage) nic.RxQueue {
	if s.RingFault() == nic.RingEnd {
		return &earlyEnd{q, s.Occasions()}
	}
	return q
}

// earlyEnd is a receive queue that, when an occasion is due, sets num_buffers to 1 for a frame in several
// buffers (virtio 1.3, 5.1.6.4).
type earlyEnd struct {
	*rxQueue
	occasions nic.Occasions
}

const numBuffers = 10

// Put implements nic.RxQueue.
func (q *earlyEnd) Put(m *nic.Mover, f *nic.Frame) (res nic.Result) {
	if res = q.rxQueue.Put(m, f); res != nic.PutTaken || q.peeked < 2 {
		return res
	}
	if q.occasions.Due() {
		segs := dma.Cut(nil, q.chains[0].In, numBuffers, 2)
		_, _ = m.Copier().Write(segs, []byte{1, 0}) // fails if the memory is gone
	}
	q.occasions.Pass()
	return res
}
