package machine

import (
	"context"
	"errors"
	"fmt"

	guestimages "vnic.dev/vnic/guest-images"
	"vnic.dev/vnic/internal/machine/assets"
)

// completed handles a missing module of an imported kernel, as named by err: with a network it
// fetches the whole kernel and returns nil; without one it returns an error with advice.
func (im *Images) completed(ctx context.Context, err error) error {
	if !errors.Is(err, guestimages.ErrNoModule) || im.Kernel.Partial == "" {
		return err
	}
	o := im.from
	if o.Offline {
		return assets.Partial("kernel "+im.Kernel.Version+": "+err.Error(), im.Kernel.Partial)
	}
	o.Whole = true
	res, ferr := assets.Fetch(ctx, o)
	if ferr != nil {
		return fmt.Errorf("kernel %s, which was imported for %s: %w: the whole one is wanted: %w", im.Kernel.Version,
			im.Kernel.Partial, err, ferr)
	}
	old := im.Resolved
	im.Resolved = res
	return old.Close()
}
