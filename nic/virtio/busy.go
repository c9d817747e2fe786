package virtio

import (
	"time"

	"vnic.dev/vnic/wire"
)

// waitBusy sleeps until a receiver of held frames has buffers, the driver has more frames and we have room for them, or
// patience ends.
func (q *txQueue) waitBusy() error {
	q.waits.add(1)
	oldest := q.slots[0].since
	armed := 0
	var last wire.Waitable
	defer func() {
		for _, w := range q.busy[:armed] {
			w.Disarm(q.wake)
		}
		clear(q.busy[:armed])
	}()
	for _, s := range q.slots[:q.used] {
		if s.since.Before(oldest) {
			oldest = s.since
		}
		w := s.pkt.Verdict.Queue
		if w == last {
			continue
		}
		if !w.Arm(q.wake) {
			return nil
		}
		last = w
		q.busy[armed] = w
		armed++
	}
	if q.used < txBatch && q.vq.EnableKick() {
		q.vq.DisableKick()
		return nil
	}
	_, err := q.sleep(q.wake.fd, q.kick, max(0, q.temper.Limit-time.Since(oldest)))
	q.vq.DisableKick()
	return err
}
