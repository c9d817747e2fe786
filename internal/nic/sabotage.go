package nic

import (
	"vnic.dev/vnic/dma"
	"vnic.dev/vnic/internal/control"
)

// Sabotage is a fault that a NIC is made with, so that tests can show that they see it (package sabotage has them).
// It puts other implementations in the place of parts of the NIC, as these are made, or as what commands set up is
// compiled: a NIC without a fault has no branch for one. What is nil, or zero, is left as it is.
type Sabotage struct {
	Name  string
	Every uint32 // of that many occasions of a queue that a fault could use it uses one; 0 is 1
	Seed  uint64 // says which one

	Rx       func(RxQueue) RxQueue             // puts another receive queue in the place of each
	Tx       func(TxQueue) TxQueue             // puts another transmit queue in the place of a Sender's
	Out      func(Outlet) Outlet               // puts another outlet in the place of a Sender's
	Steering func(control.State) control.State // changes what is compiled of a State, which it must not write to
	Ring     RingFault                         // is the device model's to put in the place of its receive rings
}

// RingFault is a fault of what a device model writes to its rings.
type RingFault uint8

// Faults of rings.
const (
	NoRingFault    RingFault = iota
	RingEnd                  // a frame of several buffers ends with its first one
	RingGeneration           // a completion keeps the generation of the lap before; of a model that has generations
)

// Occasions count what a fault could use. They belong to one goroutine at a time.
type Occasions struct{ every, left uint32 }

// Occasions begins a count.
func (s *Sabotage) Occasions() Occasions {
	every := max(s.Every, 1)
	return Occasions{every: every, left: uint32(s.Seed % uint64(every))}
}

// Due says whether the fault is to use this one.
func (o *Occasions) Due() bool { return o.left == 0 }

// Pass goes on to the next one.
func (o *Occasions) Pass() {
	if o.left == 0 {
		o.left = o.every
	}
	o.left--
}

// RingFault is that of a model's rings; there is none without sabotage.
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

// compile makes the steering of a State, that of a port with a fault anew each time: what was compiled before is of
// another State than the port says.
func (p *Port) compile(s *control.State, old *steering) (*steering, error) {
	fault := p.conf.Sabotage
	if fault == nil || fault.Steering == nil {
		return compile(s, old)
	}
	changed := fault.Steering(*s)
	now, err := compile(&changed, &steering{meters: old.meters})
	if err != nil {
		return nil, err
	}
	now.state = s
	return now, nil
}

// Placed is where bytes [off, off+n) of the payload of the frame just moved lie, until the next call or frame.
func (m *Mover) Placed(off, n uint32) []dma.Segment { return m.placed(off, n) }

// Copier is what moves bytes, for the time of a Put.
func (m *Mover) Copier() *dma.Copier { return m.c }

// Space is the address space of the receiver.
func (m *Mover) Space() *dma.Space { return m.port.space }

// Miscount counts n bytes more as payload in host memory, of the frame just moved.
func (m *Mover) Miscount(n uint64) { m.byMem.host += n }
