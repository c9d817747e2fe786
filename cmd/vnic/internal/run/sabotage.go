package run

import (
	"fmt"
	"slices"

	"vnic.dev/vnic/internal/lab"
	"vnic.dev/vnic/internal/nic/sabotage"
)

// checkSabotage says what is wrong with --sabotage. models are those of a run without a lab.
func (o *Options) checkSabotage(models []lab.Model) error {
	if o.Sabotage == "" {
		return nil
	}
	f, err := sabotage.Parse(o.Sabotage)
	if err != nil {
		return fmt.Errorf("--sabotage %w", err)
	}
	var names []string
	for _, m := range models {
		names = append(names, m.Name)
	}
	if o.Lab != nil {
		names = nil
		for _, g := range o.Lab.Guests {
			for _, n := range g.NICs {
				names = append(names, n.Model)
			}
		}
	}
	if !slices.ContainsFunc(names, f.Has) {
		return fmt.Errorf("--sabotage %s: NICs of %s alone can have it: --nic %s", f.Name, f.Only, f.Only)
	}
	return nil
}

// noteSabotage says what a run is that has a fault.
func (o *Options) noteSabotage() {
	if f, err := sabotage.Parse(o.Sabotage); err == nil {
		o.Tell("sabotage: %s, once in %d: %s", f.Name, f.Every, f.What)
	}
}

// sabotage has the NICs of a lab be made with the fault that was asked for.
func (o *Options) sabotage(d *lab.Description) error {
	if o.Sabotage == "" {
		return nil
	}
	f, err := sabotage.Parse(o.Sabotage)
	if err != nil {
		return err
	}
	d.Sabotage(&f, o.Seed)
	return nil
}
