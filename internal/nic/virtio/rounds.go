package virtio

// EndWorker ends the worker of transmit queue i and keeps the ring: the caller then runs its rounds
// (Round), to measure their cost. Call it again after the last round, before the frontend hangs up:
// for the race detector, the end of the queue then comes after that round.
func (d *Device) EndWorker(i int) {
	d.rssMu.Lock() // for the race detector: StartQueue, which ends with setDefaultRSS, comes before
	defer d.rssMu.Unlock()
	d.tx[i].sender.Stop()
}

// Round runs a round of transmit queue i, whose worker has been ended.
func (d *Device) Round(i int) (frames int, err error) { return d.tx[i].sender.Round(false) }
