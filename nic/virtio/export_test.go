package virtio

import "vnic.dev/vnic/dma"

// Counts are what the worker of transmit queue i has copied: all that is moved of its frames, at both ends.
func (d *Device) Counts(i int) *dma.Counts { return d.tx[i].t.Worker.Copier.Counts() }

// EndWorker ends the worker of transmit queue i, whose ring stays: the caller does its rounds.
func (d *Device) EndWorker(i int) { d.tx[i].sender.Stop() }

// Round is a round of transmit queue i.
func (d *Device) Round(i int) (frames int, err error) { return d.tx[i].sender.Round(false) }
