package virtio

// EndWorker ends the worker of transmit queue i and keeps the ring: the caller may then run the queue's rounds
// itself (Round). The caller calls EndWorker again after its last round, to order that round before the end of
// the queue for the race detector.
func (d *Device) EndWorker(i int) {
	d.rssMu.Lock() // orders this call after StartQueue, which ends with setDefaultRSS, for the race detector
	defer d.rssMu.Unlock()
	d.tx[i].sender.Stop()
}

// Round runs a round of transmit queue i, whose worker EndWorker must have ended.
func (d *Device) Round(i int) (frames int, err error) { return d.tx[i].sender.Round(false) }
