package driver

import (
	"fmt"
	"time"

	"vnic.dev/vnic/internal/limits"
	"vnic.dev/vnic/virtq"
)

// The class and the command that the driver sends on the control queue (virtio 1.3, 5.1.6.5), and the device's answer
// for success.
const (
	ctrlMQ         = 4 // VIRTIO_NET_CTRL_MQ
	ctrlMQPairsSet = 0 // VIRTIO_NET_CTRL_MQ_VQ_PAIRS_SET
	ctrlOK         = 0 // VIRTIO_NET_OK
)

const ctrlPause = 200 * time.Microsecond

// controlQueue is the device's control virtqueue, used one command at a time.
type controlQueue struct {
	t    transport
	ring *ring
	mem  memory
}

func newControlQueue(t transport, vq int, features uint64) (*controlQueue, error) {
	r, err := newRing(t, vq, 64, features, 0)
	if err != nil {
		return nil, err
	}
	mem, err := t.alloc(PageSize)
	if err != nil {
		return nil, err
	}
	return &controlQueue{t: t, ring: r, mem: mem}, t.setupQueue(vq, r.addrs)
}

func (q *controlQueue) setPairs(n int) error {
	var data [2]byte
	le.PutUint16(data[:], uint16(n))
	return q.command(ctrlMQ, ctrlMQPairsSet, data[:])
}

// command sends a command and waits for the device's acknowledgement, at most limits.DeviceCommand times limits.Slow.
func (q *controlQueue) command(class, cmd byte, data []byte) error {
	const ack = PageSize / 2
	b := q.mem.b
	b[0], b[1], b[ack] = class, cmd, 0xff
	copy(b[2:ack], data)
	out := []virtq.Buf{{Addr: q.mem.addr, Len: 2}, {Addr: q.mem.addr + 2, Len: uint32(len(data))}}
	if err := q.ring.Add(out, []virtq.Buf{{Addr: q.mem.addr + ack, Len: 1}}, 0); err != nil {
		return err
	}
	if q.ring.Publish() {
		q.t.kick(q.ring.vq)
	}
	var used [1]virtq.Used
	for end := time.Now().Add(limits.DeviceCommand.Here()); ; time.Sleep(ctrlPause) {
		switch n, err := q.ring.Poll(used[:]); {
		case err != nil:
			return fmt.Errorf("%w: command %d/%d: %w", ErrBroken, class, cmd, err)
		case n == 1 && b[ack] != ctrlOK:
			return fmt.Errorf("command %d/%d: the device answers %d", class, cmd, b[ack])
		case n == 1:
			return nil
		case time.Now().After(end):
			return fmt.Errorf("command %d/%d: no answer in %v", class, cmd, limits.DeviceCommand.Here())
		}
	}
}
