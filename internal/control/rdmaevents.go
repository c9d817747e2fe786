package control

import "slices"

// RDMAEvents is what a program wants to be told of the notifies of RDMA, which may be lost: what they say is asked for
// as well. Fields may be nil. The functions are called by Receive, one call at a time or several at once as Receive
// is, so they must neither wait nor call the client: they wake a goroutine that does.
type RDMAEvents struct {
	Completions func(cq uint32)     // a CQ has completions that were not there when it was last polled
	Pages       func(r PageRequest) // pages of an MR on demand are wanted; comes again until they are answered
	// Reset says that the port's state is not the one that earlier answers came from: nothing of RDMA is left.
	Reset func(old, generation uint32)
}

// OnRDMA has the client tell e, as well as all others that asked, of notifies of RDMA. undo ends that; a call that is
// under way then may still end later.
func (c *Client) OnRDMA(e RDMAEvents) (undo func()) {
	own := &e
	c.mu.Lock()
	defer c.mu.Unlock()
	c.rdma = append(slices.Clip(c.rdma), own) // Receive goes through the old one without mu
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.rdma = slices.DeleteFunc(slices.Clone(c.rdma), func(o *RDMAEvents) bool { return o == own })
	}
}

// rdmaNotify is a notify of RDMA, and who is to be told.
type rdmaNotify struct {
	cq    uint32
	pages PageRequest
	told  []*RDMAEvents
}

// decode takes a notify of class RDMA.
func (n *rdmaNotify) decode(f *Frame) error {
	switch f.Command {
	case RDMACompletions:
		return decode(f.Data, &n.cq)
	case RDMAPages:
		return decode(f.Data, &n.pages)
	}
	return ErrMalformed
}

// tell tells of a notify, of another generation or of both, without the client's mu.
func (n *rdmaNotify) tell(f *Frame, old uint32, changed bool) {
	rdma := f.Kind == KindNotify && f.Class == ClassRDMA
	for _, e := range n.told {
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

// NotifyCompletions appends to frame the frame that tells the driver, whose MAC is dst, that a CQ has completions.
func (d *Dispatcher) NotifyCompletions(frame []byte, dst [6]byte, cq uint32) []byte {
	return d.notify(frame, dst, ClassRDMA, RDMACompletions, cq)
}

// NotifyPages appends to frame the frame that asks the driver, whose MAC is dst, for pages.
func (d *Dispatcher) NotifyPages(frame []byte, dst [6]byte, r *PageRequest) []byte {
	return d.notify(frame, dst, ClassRDMA, RDMAPages, r)
}
