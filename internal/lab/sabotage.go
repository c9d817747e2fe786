package lab

import (
	"vnic.dev/vnic/internal/nic/sabotage"
)

// Sabotage sets the fault for all NICs whose model can have it; seed selects which occasions the fault hits
// (sabotage.Fault.NIC).
func (d *Description) Sabotage(f *sabotage.Fault, seed uint64) {
	for n := range d.AllNICs() {
		if f.Has(n.Model) {
			n.Sabotage = f.NIC(seed)
		}
	}
}
