package run

import (
	"errors"
	"fmt"
	"strings"

	"vnic.dev/vnic/internal/lab"
)

// models of the NIC
const (
	NICVirtio = lab.Virtio
	NICGVE    = lab.GVE
)

// models returns the models of the first guest's and the second guest's NICs: Options.NIC is one name for both, or two
// with a comma between.
func (o *Options) models() (m [2]lab.Model, err error) {
	names := strings.Split(o.NIC, ",")
	if len(names) > len(m) {
		return m, fmt.Errorf("--nic %s: one model, or two: the sender's and the receiver's", o.NIC)
	}
	for i := range m {
		known := false
		if m[i], known = lab.LookupModel(names[min(i, len(names)-1)]); !known {
			return m, lab.UnknownModel(o.NIC)
		}
		m[i] = m[i].With(o.GPUDriver)
		if m[i].Name == NICGVE && o.InProc && !o.away(i) {
			return m, errors.New("--nic gve: its guests' network stack is the kernel's, so there are none with --guest inproc")
		}
	}
	return m, nil
}

// queuePairs returns how many queue pairs a NIC gets without a lab file: the last BindQueues receive queues
// are for GPU memory, the others for ordinary traffic.
func (o *Options) queuePairs(m lab.Model) int { return max(m.QueuePairs, o.BindQueues+1) }
