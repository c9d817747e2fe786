package lab

import (
	"vnic.dev/vnic/internal/nic/sabotage"
)

// Sabotage sets the fault for all NICs whose model supports it; seed selects the affected frames.
func (d *Description) Sabotage(f *sabotage.Fault, seed uint64) {
	for n := range d.AllNICs() {
		if f.Has(n.Model) {
			n.Sabotage = f.NIC(seed)
		}
	}
}
