package nic

import (
	"vnic.dev/vnic/dma"
	"vnic.dev/vnic/internal/control"
)

// Sabotage is a deliberate fault of a NIC (package sabotage). Faults that are nil or zero change nothing.
type Sabotage struct {
	Name  string
	Every uint32 // one hit in Every occasions; 0: in each
	Seed  uint64 // selects the occasion

	Rx       func(RxQueue) RxQueue
	Tx       func(TxQueue) TxQueue
	Out      func(Outlet) Outlet
	Steering func(control.State) control.State // changes a copy of the State, but not the copy's slices
	Ring     RingFault
}

// RingFault is a fault of the marks in a device model's rings.
type RingFault uint8

// Ring faults.
const (
	NoRingFault    RingFault = iota
	RingEnd                  // the first buffer of a frame of several is marked as the last one
	RingGeneration           // a completion keeps the generation bit of the previous lap
)

// Occasions count the occasions for a fault. One goroutine at a time uses them.
type Occasions struct{ every, left uint32 }

// Occasions returns a new count of occasions.
func (s *Sabotage) Occasions() Occasions {
	every := max(s.Every, 1)
	return Occasions{every: every, left: uint32(s.Seed % uint64(every))}
}

// Due reports whether the fault hits the current occasion.
func (o *Occasions) Due() bool { return o.left == 0 }

// Pass moves on to the next occasion.
func (o *Occasions) Pass() {
	if o.left == 0 {
		o.left = o.every
	}
	o.left--
}

// RingFault returns the fault of the receive rings.
func (s *Sabotage) RingFault() RingFault {
	if s == nil {
		return NoRingFault
	}
	return s.Ring
}

func (s *Sabotage) rx(q RxQueue) RxQueue {
	if s == nil || s.Rx == nil {
		return q
	}
	return s.Rx(q)
}

func (s *Sabotage) tx(q TxQueue) TxQueue {
	if s == nil || s.Tx == nil {
		return q
	}
	return s.Tx(q)
}

func (s *Sabotage) out(o Outlet) Outlet {
	if s == nil || s.Out == nil {
		return o
	}
	return s.Out(o)
}

// compile makes the steering of a State. With a fault of the steering it does not reuse compiled tables, which
// come from a changed State.
func (p *Port) compile(s *control.State, old *steering) (*steering, error) {
	fault := p.conf.Sabotage
	if fault == nil || fault.Steering == nil {
		return compile(s, old)
	}
	changed := fault.Steering(*s)
	now, err := compile(&changed, &steering{flowCounters: old.flowCounters})
	if err != nil {
		return nil, err
	}
	now.state = s
	return now, nil
}

// Placed returns the memory where bytes [off, off+n) of the payload just moved lie. The result is
// valid until the next call or frame.
func (m *Mover) Placed(off, n uint32) []dma.Segment { return m.placed(off, n) }

// Copier returns the copier, during a Put.
func (m *Mover) Copier() *dma.Copier { return m.c }

// Space returns the receiver's address space.
func (m *Mover) Space() *dma.Space { return m.port.space }

// Miscount adds n bytes to the host memory payload of the frame just moved.
func (m *Mover) Miscount(n uint64) { m.byMem.host += n }
