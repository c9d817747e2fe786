package expect

import (
	"fmt"

	"vnic.dev/vnic/cmd/vnic/internal/selftest/ktap"
	"vnic.dev/vnic/cmd/vnic/internal/selftest/results"
)

// Contradictions are cases that do not pass for a reason of the driver's or of the setup's, though they pass on another
// device that has the same driver and the same setup: QEMU's own NIC in the place of vnic's virtio. Then the reason is
// wrong.
func (x *Expectations) Contradictions(yardstick *results.Run) (list []string) {
	for i := range yardstick.Programs {
		run := &yardstick.Programs[i]
		p, ok := x.File.Programs[run.Name][run.Column]
		if !ok {
			continue
		}
		for k := range run.Cases {
			c := &run.Cases[k]
			e := p.entry(c.Name)
			if e == nil || c.Result != ktap.Pass || e.Class != Driver && e.Class != Setup {
				continue
			}
			list = append(list, fmt.Sprintf("%s:%s (%s) passes on %s of %s: that it does not on %s has another reason than "+
				"its %s", run.Name, c.Name, run.Column, yardstick.Model, yardstick.Device, x.File.Model, e.Class))
		}
	}
	return list
}
