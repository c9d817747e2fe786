package control

import "slices"

// RDMAEvents are a program's callbacks for the notifies of RDMA. A notify may be lost, so programs
// also poll. Fields may be nil. Receive calls the functions, and Receive may run in several
// goroutines at once. The functions must not block or call the client; they can wake a goroutine
// that calls it.
type RDMAEvents struct {
	Completions func(cq uint32)     // a CQ has completions that came after its last poll
	Pages       func(r PageRequest) // the NIC requests pages of an MR on demand; may be repeated until AnswerPages
	// Reset is called when the generation of the port's state changes: all RDMA objects are gone.
	Reset func(old, generation uint32)
}

// OnRDMA registers callbacks for notifies of RDMA, in addition to callbacks of earlier calls. undo
// removes the callbacks of this call; a Receive that has begun before undo may still call them.
func (c *Client) OnRDMA(e RDMAEvents) (undo func()) {
	added := &e
	c.mu.Lock()
	defer c.mu.Unlock()
	c.rdma = append(slices.Clip(c.rdma), added) // Receive reads the old slice without mu
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.rdma = slices.DeleteFunc(slices.Clone(c.rdma), func(o *RDMAEvents) bool { return o == added })
	}
}

// rdmaNotify is a notify of RDMA, and the callbacks to call.
type rdmaNotify struct {
	cq     uint32
	pages  PageRequest
	events []*RDMAEvents
}

// decode decodes a notify of class RDMA.
func (n *rdmaNotify) decode(f *Frame) error {
	switch f.Command {
	case RDMACompletions:
		return decode(f.Data, &n.cq)
	case RDMAPages:
		return decode(f.Data, &n.pages)
	}
	return ErrMalformed
}

// notify calls the callbacks for a notify, a new generation, or both, without the client's mu.
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

// NotifyCompletions appends to frame the notify, for the driver with the MAC dst, that a CQ has
// completions.
func (d *Dispatcher) NotifyCompletions(frame []byte, dst [6]byte, cq uint32) []byte {
	return d.notify(frame, dst, ClassRDMA, RDMACompletions, cq)
}

// NotifyPages appends to frame the notify that asks the driver, which has the MAC dst, for pages.
func (d *Dispatcher) NotifyPages(frame []byte, dst [6]byte, r *PageRequest) []byte {
	return d.notify(frame, dst, ClassRDMA, RDMAPages, r)
}
