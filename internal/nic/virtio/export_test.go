package virtio

import "vnic.dev/vnic/dma"

// Counts returns what the worker of transmit queue i has copied for its frames, at both ends.
func (d *Device) Counts(i int) *dma.Counts { return d.tx[i].t.Worker.Copier.Counts() }

// Park calls Wake and Wait of transmit queue i's Sender, whose worker EndWorker has ended, so that Wait does not sleep.
func (d *Device) Park(i int) error {
	d.tx[i].sender.Wake()
	return d.tx[i].sender.Wait()
}

// Waits returns nic.SenderStats.Waits of transmit queue i: how often its worker has tried to sleep for a busy receiver.
func (d *Device) Waits(i int) uint64 { return d.tx[i].sender.Stats().Waits }

// Backlog returns the Backlog of transmit queue i.
func (d *Device) Backlog(i int) (frames int, full bool) { return d.tx[i].Backlog() }

// TxLists returns the capacities of the segment lists of transmit queue i, whose worker has ended: for each k, the
// greatest capacity in peeked[k], in slots[k].held and in frame k of the Sender.
func (d *Device) TxLists(i int) (room []int) {
	d.rssMu.Lock() // like EndWorker, for the race detector
	defer d.rssMu.Unlock()
	q := d.tx[i]
	for k, f := range q.sender.Frames() {
		c, held := &q.peeked[k], &q.slots[k].held
		room = append(room, max(cap(c.Out), cap(c.In), cap(held.Out), cap(held.In), cap(f.Packet.Payload)))
	}
	return room
}

// RxLists returns capacities of the segment lists of receive queue i: the greater one of each chain's two lists, and
// the greatest one of the queue's lists for a frame.
func (d *Device) RxLists(i int) (chains []int, frame int) {
	q := d.rx[i]
	q.Lock()
	defer q.Unlock()
	for k := range q.chains {
		chains = append(chains, max(cap(q.chains[k].Out), cap(q.chains[k].In)))
	}
	return chains, max(cap(q.buffers), cap(q.header), cap(q.payload))
}

// ReturnRx returns up to n chains of receive queue i to the driver, unused. Its result is their number.
func (d *Device) ReturnRx(i, n int) (returned int) {
	defer d.space.Leave(d.space.Enter())
	q := d.rx[i]
	q.Lock()
	defer q.Unlock()
	returned = q.Return(n)
	q.Flush()
	return returned
}
