package lab

import (
	"vnic.dev/vnic/internal/nic/sabotage"
)

// Sabotage sets the fault for all NICs whose model supports it; seed selects the frames that it
// affects. For one NIC alone set its NIC.Sabotage.
func (d *Description) Sabotage(f *sabotage.Fault, seed uint64) {
	for n := range d.AllNICs() {
		if f.Has(n.Model) {
			n.Sabotage = f.NIC(seed)
		}
	}
}
