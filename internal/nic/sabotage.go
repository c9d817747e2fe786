package nic

import (
	"vnic.dev/vnic/dma"
	"vnic.dev/vnic/internal/control"
)

// Sabotage is a deliberate fault of a NIC (package sabotage). Of the fields from Rx on, a field that is nil or zero
// changes nothing.
type Sabotage struct {
	Name  string
	Every uint32 // of Every occasions, one is hit; 0 counts as 1
	Seed  uint64 // selects which of Every occasions is hit

	Rx       func(RxQueue) RxQueue
	Tx       func(TxQueue) TxQueue
	Out      func(Outlet) Outlet
	Steering func(control.State) control.State // returns a changed State, and does not write to the slices of its argument
	Ring     RingFault
}

// RingFault is a fault of the marks in a device model's receive rings.
type RingFault uint8

// Ring faults.
const (
	NoRingFault    RingFault = iota
	RingEnd                  // the first buffer of a frame in several buffers is marked as the last one
	RingGeneration           // a completion keeps the generation bit of the previous lap (gve only)
)

// Occasions count the occasions for a fault. Only one goroutine at a time may call the methods.
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

// RingFault returns the fault of the receive rings; s may be nil.
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

// compile makes the steering of a State. With a Steering fault it changes the State first, and reuses no tables of old,
// which were compiled from another changed State.
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

// Placed returns the memory where bytes [off, off+n) of the payload just moved lie. The caller holds the queue's lock.
// The result is valid until the next call of a method of m, or the next frame.
func (m *Mover) Placed(off, n uint32) []dma.Segment { return m.placed(off, n) }

// Copier returns the copier of the sender, or of the control channel, for the current Put.
func (m *Mover) Copier() *dma.Copier { return m.c }

// Space returns the receiver's address space.
func (m *Mover) Space() *dma.Space { return m.port.space }

// Miscount adds n bytes to the count of payload in host memory of the frame just moved.
func (m *Mover) Miscount(n uint64) { m.byMem.host += n }
