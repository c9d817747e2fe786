package main

import (
	"errors"
	"fmt"

	"vnic.dev/vnic/cmd/vnic/internal/broker"
	"vnic.dev/vnic/internal/outfile"
)

// draft is a file that a flag names and that gets its name when it is whole. A nil draft is none.
type draft struct {
	flag string
	*outfile.Draft
}

// newDraft makes it while this process may make files; b, if there is one, gives it its name later. Without an error
// the caller closes it.
func newDraft(flag, file string, b *broker.Client) (*draft, error) {
	if file == "" {
		return nil, nil
	}
	d, err := outfile.NewDraft(file)
	if err != nil {
		return nil, fmt.Errorf("--%s %w", flag, err)
	}
	if b != nil {
		rename, remove, err := b.Draft(d.File(), d.Temp, d.Name)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("--%s %w", flag, err), d.Discard())
		}
		d.Rename, d.Remove = rename, remove
	}
	return &draft{flag, d}, nil
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
