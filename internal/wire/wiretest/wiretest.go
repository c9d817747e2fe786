// Package wiretest has helpers for tests with their own port at a switch.
//
// The package is not API (README, Stability).
package wiretest

import "vnic.dev/vnic/internal/wire"

// Send sends a packet, again while the verdict is Busy, and returns the last verdict.
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

// Take sets the verdict Taken for the packets of a batch, and calls frame with the bytes of each.
func Take(w *wire.Worker, batch []*wire.Packet, frame func(b []byte)) {
	for _, p := range batch {
		b := make([]byte, p.Len())
		n := copy(b, p.Header)
		if _, err := w.Copier.Read(b[n:], p.Payload); err != nil {
			panic(err) // the memory of a test cannot disappear
		}
		frame(b)
		p.Verdict = wire.Verdict{Kind: wire.Taken}
	}
}
