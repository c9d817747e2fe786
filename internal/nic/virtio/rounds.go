package virtio

// EndWorker ends the worker of transmit queue i and keeps the ring: the caller may then run the queue's rounds
// itself (Round). After the last round it calls EndWorker again, whose lock orders the rounds before the use of the
// queue by another goroutine, for the race detector.
func (d *Device) EndWorker(i int) {
	d.rssMu.Lock() // orders EndWorker after a StartQueue, which takes rssMu last (setDefaultRSS)
	defer d.rssMu.Unlock()
	d.tx[i].sender.Stop()
}

// Round runs a round of transmit queue i, whose worker EndWorker must have ended.
func (d *Device) Round(i int) (frames int, err error) { return d.tx[i].sender.Round(false) }
