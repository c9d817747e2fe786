package run

import (
	"vnic.dev/vnic/lab"
)

// Personalities of the NIC.
const (
	NICVirtio = lab.Virtio
	NICGVE    = lab.GVE
)

func (o *Options) personality() lab.Personality {
	p, _ := lab.Of(o.NIC)
	return p
}

// queuePairs of each NIC: the last are to be bound, and the first, at least one, carry ordinary traffic.
func (o *Options) queuePairs() int { return max(o.personality().QueuePairs, o.BindQueues+1) }

// hostQueues is how many queues carry ordinary traffic.
func (o *Options) hostQueues() int { return o.queuePairs() - o.BindQueues }

// bound lists the queues to be bound.
func (o *Options) bound() (queues []int) {
	for q := o.hostQueues(); q < o.queuePairs(); q++ {
		queues = append(queues, q)
	}
	return queues
}
