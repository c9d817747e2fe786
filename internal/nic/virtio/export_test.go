package virtio

import "vnic.dev/vnic/dma"

// Counts are what the worker of transmit queue i has copied: all that is moved of its frames, at both ends.
func (d *Device) Counts(i int) *dma.Counts { return d.tx[i].t.Worker.Copier.Counts() }

// Park has transmit queue i, whose worker has been ended, wait for frames, and be woken at once.
func (d *Device) Park(i int) error {
	d.tx[i].sender.Wake()
	return d.tx[i].sender.Wait()
}

// Waits is how often the worker of transmit queue i has waited for buffers.
func (d *Device) Waits(i int) uint64 { return d.tx[i].sender.Stats().Waits }

// Backlog is how many frames wait for the worker of transmit queue i, which has been ended.
func (d *Device) Backlog(i int) (frames int, full bool) { return d.tx[i].Backlog() }

// TxLists is how many segments there is room for in the lists of transmit queue i, whose worker has
// been ended: of each frame under way, its chain's and its packet's.
func (d *Device) TxLists(i int) (room []int) {
	d.rssMu.Lock() // before StopQueue of its pair, as in EndWorker: what the caller did by rounds is done
	defer d.rssMu.Unlock()
	q := d.tx[i]
	for k, f := range q.sender.Frames() {
		c, own := &q.peeked[k], &q.slots[k].own
		room = append(room, max(cap(c.Out), cap(c.In), cap(own.Out), cap(own.In), cap(f.Packet.Payload)))
	}
	return room
}

// RxLists is the same of receive queue i: of each chain of a frame, and of the frame.
func (d *Device) RxLists(i int) (chains []int, frame int) {
	q := d.rx[i]
	q.Lock()
	defer q.Unlock()
	for k := range q.chains {
		chains = append(chains, max(cap(q.chains[k].Out), cap(q.chains[k].In)))
	}
	return chains, max(cap(q.buffers), cap(q.header), cap(q.payload))
}

// ReturnRx gives up to n chains of receive queue i back.
func (d *Device) ReturnRx(i, n int) (returned int) {
	defer d.space.Leave(d.space.Enter())
	q := d.rx[i]
	q.Lock()
	defer q.Unlock()
	returned = q.Return(n)
	q.Flush()
	return returned
}
