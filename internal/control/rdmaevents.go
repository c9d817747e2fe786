package control

import "slices"

// RDMAEvents are a program's callbacks for the notifies of RDMA, which may be lost, and for a new generation
// of the port's state. Fields may be nil.
// [Client.Receive] calls the functions, possibly from several goroutines at once. They must not block or call
// the client.
type RDMAEvents struct {
	Completions func(cq uint32)     // a CQ has new completions
	Pages       func(r PageRequest) // the NIC requests pages of an MR on demand; may be repeated
	// Reset reports a new generation of the port's state: all RDMA objects are gone.
	Reset func(old, generation uint32)
}

// OnRDMA registers callbacks, in addition to earlier ones. undo removes them; a Receive that has begun may
// still call them.
func (c *Client) OnRDMA(e RDMAEvents) (undo func()) {
	added := &e
	c.mu.Lock()
	defer c.mu.Unlock()
	c.rdma = append(slices.Clip(c.rdma), added) // a copy: Receive reads the old slice without mu
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.rdma = slices.DeleteFunc(slices.Clone(c.rdma), func(o *RDMAEvents) bool { return o == added })
	}
}

type rdmaNotify struct {
	cq     uint32
	pages  PageRequest
	events []*RDMAEvents
}

func (n *rdmaNotify) decode(f *Frame) error {
	switch f.Command {
	case RDMACompletions:
		return decode(f.Data, &n.cq)
	case RDMAPages:
		return decode(f.Data, &n.pages)
	}
	return ErrMalformed
}

// notify calls the callbacks. The client's mu must not be held.
func (n *rdmaNotify) notify(f *Frame, old uint32, changed bool) {
	rdma := f.Kind == KindNotify && f.Class == ClassRDMA
	for _, e := range n.events {
		if changed && e.Reset != nil {
			e.Reset(old, f.Generation)
		}
		if rdma && f.Command == RDMACompletions && e.Completions != nil {
			e.Completions(n.cq)
		}
		if rdma && f.Command == RDMAPages && e.Pages != nil {
			e.Pages(n.pages)
		}
	}
}

// NotifyCompletions appends to frame the notify that a CQ has completions, for the driver with the MAC dst.
func (d *Dispatcher) NotifyCompletions(frame []byte, dst [6]byte, cq uint32) []byte {
	return d.notify(frame, dst, ClassRDMA, RDMACompletions, cq)
}

// NotifyPages appends to frame the notify that requests pages, for the driver with the MAC dst.
func (d *Dispatcher) NotifyPages(frame []byte, dst [6]byte, r *PageRequest) []byte {
	return d.notify(frame, dst, ClassRDMA, RDMAPages, r)
}
