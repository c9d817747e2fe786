// Package wiretest has helpers for tests with their own port at a switch.
//
// The package is not API (README, Stability).
package wiretest

import "vnic.dev/vnic/internal/wire"

// Send sends a packet on l. While the verdict is Busy, it waits until the verdict's Queue has buffers, and sends again.
// It returns the last verdict. A Busy verdict must have a Queue, as on links without impairments.
func Send(l *wire.Link, w *wire.Worker, p *wire.Packet) wire.Verdict {
	for {
		l.Deliver(w, []*wire.Packet{p})
		if p.Verdict.Kind != wire.Busy {
			return p.Verdict
		}
		ready := make(waker, 1)
		if p.Verdict.Queue.Arm(ready) {
			<-ready
		}
	}
}

type waker chan struct{}

func (w waker) Wake() {
	select {
	case w <- struct{}{}:
	default:
	}
}

// Take calls frame with a copy of the bytes of each packet of a batch, and sets the packets' verdicts to Taken. It
// panics if it cannot read a packet.
func Take(w *wire.Worker, batch []*wire.Packet, frame func(b []byte)) {
	for _, p := range batch {
		b := make([]byte, p.Len())
		n := copy(b, p.Header)
		if _, err := w.Copier.Read(b[n:], p.Payload); err != nil {
			panic(err) // tests keep the memory of their packets
		}
		frame(b)
		p.Verdict = wire.Verdict{Kind: wire.Taken}
	}
}
