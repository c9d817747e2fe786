package virtio

// EndWorker ends the worker of transmit queue i, whose ring stays: the caller does its rounds, as a measurement of what
// they cost does. It is called again after the last round, before the frontend hangs up: then the end of the queue
// comes after that round.
func (d *Device) EndWorker(i int) {
	d.rssMu.Lock() // after StartQueue, which ends with setDefaultRSS: for the race detector, which sees no socket
	defer d.rssMu.Unlock()
	d.tx[i].sender.Stop()
}

// Round is a round of transmit queue i, whose worker has been ended.
func (d *Device) Round(i int) (frames int, err error) { return d.tx[i].sender.Round(false) }
