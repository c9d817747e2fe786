package driver

import "sync/atomic"

// Stats returns the NIC's counters.
func (n *NIC) Stats() Stats {
	p := &n.poller
	t := p.times()
	s := Stats{
		Busy: t[stateBusy], Spin: t[stateSpin], Asleep: t[stateAsleep],
		Sleeps: p.sleeps.Load(), Wakes: p.wakes.Load(), Rounds: p.rounds.Load(),
	}
	for i := range n.rx {
		s.Rx = append(s.Rx, n.rx[i].stats.read())
		s.Tx = append(s.Tx, n.tx[i].stats.read())
	}
	return s
}

type counters struct {
	frames, bytes, payload, kicks, full, unsplit, dropped, control atomic.Uint64
}

func (c *counters) read() QueueStats {
	return QueueStats{
		Frames: c.frames.Load(), Bytes: c.bytes.Load(), Payload: c.payload.Load(), Kicks: c.kicks.Load(),
		Full: c.full.Load(), Unsplit: c.unsplit.Load(), Dropped: c.dropped.Load(), Control: c.control.Load(),
	}
}
