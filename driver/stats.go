package driver

// Stats counts what the NIC did.
func (n *NIC) Stats() Stats {
	p := &n.poller
	t := p.times()
	s := Stats{
		Busy: t[stateBusy], Spin: t[stateSpin], Asleep: t[stateAsleep],
		Sleeps: p.sleeps.Load(), Wakes: p.wakes.Load(), Rounds: p.rounds.Load(),
	}
	for _, q := range n.rx {
		c := &q.stats
		s.Rx = append(s.Rx, QueueStats{
			Frames: c.frames.Load(), Bytes: c.bytes.Load(), Payload: c.payload.Load(), Kicks: c.kicks.Load(),
			Full:    c.full.Load(),
			Unsplit: c.unsplit.Load(), Dropped: c.dropped.Load(), Control: c.control.Load(),
		})
	}
	for _, q := range n.tx {
		s.Tx = append(s.Tx, QueueStats{
			Frames: q.frames.Load(), Bytes: q.bytes.Load(), Payload: q.payload.Load(), Kicks: q.kicks.Load(),
			Full: q.full.Load(),
		})
	}
	return s
}
