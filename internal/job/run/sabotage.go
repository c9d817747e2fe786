package run

import (
	"fmt"
	"slices"

	"vnic.dev/vnic/internal/lab"
	"vnic.dev/vnic/internal/nic/sabotage"
)

func (o *Options) noteSabotage() {
	if f, err := sabotage.Parse(o.Sabotage); err == nil {
		o.Tell("sabotage: %s, once in %d: %s", f.Name, f.Every, f.What)
	}
}

// sabotage sets the fault of --sabotage, if there is one, for the NICs of d whose model can have it. If there are no
// such NICs, it returns an error.
func (o *Options) sabotage(d *lab.Description) error {
	if o.Sabotage == "" {
		return nil
	}
	f, err := sabotage.Parse(o.Sabotage)
	if err != nil {
		return fmt.Errorf("--sabotage %w", err)
	}
	if !slices.ContainsFunc(d.Guests, func(g lab.Guest) bool {
		return slices.ContainsFunc(g.NICs, func(n lab.NIC) bool { return f.Has(n.Model) })
	}) {
		return fmt.Errorf("--sabotage %s: NICs of %s alone can have it: --nic %s", f.Name, f.Only, f.Only)
	}
	d.Sabotage(&f, o.Seed)
	return nil
}
