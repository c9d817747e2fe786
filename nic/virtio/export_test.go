package virtio

import "vnic.dev/vnic/dma"

// Counts are what the worker of transmit queue i has copied: all that is moved of its frames, at both ends.
func (d *Device) Counts(i int) *dma.Counts { return d.tx[i].t.Worker.Copier.Counts() }

// Round has the caller do a round of transmit queue i, whose worker sleeps and is not to be kicked.
func (d *Device) Round(i int) (frames int, err error) { return d.tx[i].round(false) }
