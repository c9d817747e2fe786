package main

import (
	"errors"
	"fmt"

	"vnic.dev/vnic/cmd/vnic/internal/broker"
	"vnic.dev/vnic/internal/outfile"
)

// draft is a file that a flag names and that gets its name when it is whole. A nil draft is none.
type draft struct {
	flag, name     string
	*outfile.Draft // nil: not open
}

// open makes the file while this process may make files; b, if there is one, gives it its name later. Without an error
// the caller closes it.
func (d *draft) open(b *broker.Client) error {
	f, err := outfile.NewDraft(d.name)
	if err != nil {
		return fmt.Errorf("--%s %w", d.flag, err)
	}
	if b != nil {
		if f.Rename, f.Remove, err = b.Draft(f.File(), f.Temp, f.Name); err != nil {
			return errors.Join(fmt.Errorf("--%s %w", d.flag, err), f.Discard())
		}
	}
	d.Draft = f
	return nil
}

// commit writes the file.
func (d *draft) commit(b []byte) error {
	if d == nil {
		return nil
	}
	if err := d.Commit(b); err != nil {
		return fmt.Errorf("--%s %w", d.flag, err)
	}
	return nil
}

// close leaves nothing of a file that has not been written.
func (d *draft) close() error {
	if d == nil {
		return nil
	}
	return d.Discard()
}
