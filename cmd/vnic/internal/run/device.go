package run

import (
	"errors"
	"fmt"
	"strings"

	"vnic.dev/vnic/lab"
)

// Device models of the NIC.
const (
	NICVirtio = lab.Virtio
	NICGVE    = lab.GVE
)

// models are the NICs' of sender and receiver: Options.NIC is one name for both, or two with a comma between.
func (o *Options) models() (m [2]lab.Model, err error) {
	names := strings.Split(o.NIC, ",")
	if len(names) > len(m) {
		return m, fmt.Errorf("--nic %s: one model, or two: the sender's and the receiver's", o.NIC)
	}
	for i := range m {
		known := false
		if m[i], known = lab.LookupModel(names[min(i, len(names)-1)]); !known {
			return m, fmt.Errorf("--nic %s: virtio or gve", o.NIC)
		}
		if m[i].Name == NICGVE && o.InProc {
			return m, errors.New("--nic gve: its guests' network stack is the kernel's, so there are none with --guest inproc")
		}
	}
	return m, nil
}

// queuePairs of a NIC: the last are to be bound, and the first, at least one, carry ordinary traffic.
func (o *Options) queuePairs(m lab.Model) int { return max(m.QueuePairs, o.BindQueues+1) }

// hostQueues is how many queues of a NIC carry ordinary traffic.
func (o *Options) hostQueues(m lab.Model) int { return o.queuePairs(m) - o.BindQueues }

// bound lists the queues of a NIC that are to be bound.
func (o *Options) bound(m lab.Model) (queues []int) {
	for q := o.hostQueues(m); q < o.queuePairs(m); q++ {
		queues = append(queues, q)
	}
	return queues
}
