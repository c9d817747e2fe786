package virtio

// EndWorker ends the worker of transmit queue i and keeps the ring: the caller may then run the queue's rounds
// itself (Round), and calls EndWorker again after the last one, for the race detector.
func (d *Device) EndWorker(i int) {
	d.rssMu.Lock() // after StartQueue, which ends with setDefaultRSS
	defer d.rssMu.Unlock()
	d.tx[i].sender.Stop()
}

// Round runs a round of transmit queue i, whose worker EndWorker must have ended.
func (d *Device) Round(i int) (frames int, err error) { return d.tx[i].sender.Round(false) }
