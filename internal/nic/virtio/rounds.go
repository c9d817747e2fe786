package virtio

// EndWorker ends the worker of transmit queue i and keeps the ring: the caller then runs the
// queue's rounds itself (Round), to measure their cost. The caller calls EndWorker again after the
// last round, before the frontend hangs up, so that for the race detector the end of the queue
// comes after that round.
func (d *Device) EndWorker(i int) {
	d.rssMu.Lock() // orders this call after StartQueue, which ends with setDefaultRSS, for the race detector
	defer d.rssMu.Unlock()
	d.tx[i].sender.Stop()
}

// Round runs a round of transmit queue i, whose worker EndWorker has ended.
func (d *Device) Round(i int) (frames int, err error) { return d.tx[i].sender.Round(false) }
