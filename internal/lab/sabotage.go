package lab

import (
	"vnic.dev/vnic/internal/nic/sabotage"
)

// Sabotage has all NICs be made with a fault whose model can have it; seed says which frames it hits. For one NIC alone
// set its NIC.Sabotage.
func (d *Description) Sabotage(f *sabotage.Fault, seed uint64) {
	for i := range d.Guests {
		for j := range d.Guests[i].NICs {
			if n := &d.Guests[i].NICs[j]; f.Has(n.Model) {
				n.Sabotage = f.NIC(seed)
			}
		}
	}
}
