package lab

import (
	"vnic.dev/vnic/internal/nic/sabotage"
)

// Sabotage sets the fault for all NICs whose model supports it; seed selects the frames that it
// affects. For one NIC alone set its NIC.Sabotage.
func (d *Description) Sabotage(f *sabotage.Fault, seed uint64) {
	for i := range d.Guests {
		for j := range d.Guests[i].NICs {
			if n := &d.Guests[i].NICs[j]; f.Has(n.Model) {
				n.Sabotage = f.NIC(seed)
			}
		}
	}
}
