package control

import (
	"fmt"
	"slices"
	"syscall"
)

// State is the result of the commands on a port, except jobs and RDMA. It can be encoded with encoding/json
// and restored.
//
// Its methods implement the rules of the commands, with some errnos and messages of Linux's devmem
// (net/core/netdev_rx_queue.c, net/ethtool/rings.c), and change the State only if they return no error. They
// replace its slices and never modify elements: a copy of the struct is an independent State.
type State struct {
	Generation   uint32
	Splits       []Split // one for each receive queue, in order
	RSS          RSS
	Rules        []FlowRule // sorted by ID, as are Buffers, Bindings and FlowCounters
	Buffers      []Buffer
	Bindings     []Binding
	FlowCounters []FlowCounter
	LastID       uint32 // the last ID of a rule, binding or flow counter
}

// NewState returns a state without rules, buffers, bindings and flow counters. Header split is off, and RSS's
// table has i.MaxRSS entries (at least one) that name the receive queues in turn. nic.Port replaces this table.
func NewState(generation uint32, i *Info, key [40]byte) *State {
	s := &State{Generation: generation, RSS: RSS{Key: key, Table: make([]uint16, max(i.MaxRSS, 1))}}
	for q := range i.QueuePairs {
		s.Splits = append(s.Splits, Split{Queue: q})
	}
	for n := range s.RSS.Table {
		s.RSS.Table[n] = uint16(n) % max(i.QueuePairs, 1)
	}
	s.RSS.HashTypes = HashIPv4 | HashTCPv4 | HashUDPv4 | HashIPv6 | HashTCPv6 | HashUDPv6
	return s
}

// Clone returns a copy that shares nothing with s.
func (s *State) Clone() *State {
	c := *s
	c.Splits, c.RSS.Table = slices.Clone(s.Splits), slices.Clone(s.RSS.Table)
	c.Rules, c.Buffers, c.FlowCounters = slices.Clone(s.Rules), slices.Clone(s.Buffers), slices.Clone(s.FlowCounters)
	c.Bindings = slices.Clone(s.Bindings)
	for i := range c.Bindings {
		c.Bindings[i].Queues = slices.Clone(c.Bindings[i].Queues)
	}
	return &c
}

func refuse(errno syscall.Errno, what string, args ...any) error {
	return &textError{fmt.Sprintf(what, args...), errno}
}

// SetSplit sets a queue's header split. A bound queue must have header split on, with threshold 0. SetSplit
// refuses to turn header split on for queue 0, which receives control frames.
func (s *State) SetSplit(x Split) error {
	switch {
	case int(x.Queue) >= len(s.Splits):
		return refuse(syscall.EINVAL, "split of queue %d: the port has %d", x.Queue, len(s.Splits))
	case x.On && x.Queue == 0:
		return refuse(syscall.EINVAL,
			"queue 0 cannot be split: it takes control frames and all that has no header to split at")
	case s.Bound(x.Queue) != 0 && !x.On:
		return refuse(syscall.EINVAL, "can't disable tcp-data-split while device has memory provider enabled (queue %d)",
			x.Queue)
	case s.Bound(x.Queue) != 0 && x.Threshold != 0:
		return refuse(syscall.EINVAL, "hds-thresh of a bound queue must be zero (queue %d)", x.Queue)
	}
	s.Splits = slices.Clone(s.Splits)
	s.Splits[x.Queue] = x
	return nil
}

// Split returns a queue's header split.
func (s *State) Split(queue uint16) (Split, error) {
	if int(queue) >= len(s.Splits) {
		return Split{}, refuse(syscall.EINVAL, "split of queue %d: the port has %d", queue, len(s.Splits))
	}
	return s.Splits[queue], nil
}

var ruled = []uint8{protoTCP, protoUDP, protoESP, protoAH, protoSCTP}

// AddFlow adds a rule with a new ID, and returns the ID. limit bounds the number of rules (ENOSPC).
func (s *State) AddFlow(r FlowRule, limit int) (uint32, error) {
	r.ID = 0
	if _, err := encode(nil, r); err != nil {
		return 0, err
	}
	switch {
	case int(r.Queue) >= len(s.Splits):
		return 0, refuse(syscall.EINVAL, "rule to queue %d: the port has %d", r.Queue, len(s.Splits))
	case !slices.Contains(ruled, r.Proto):
		return 0, refuse(syscall.EOPNOTSUPP, "rule for protocol %d: only %d have rules (TCP, UDP, ESP, AH, SCTP)", r.Proto,
			ruled)
	case !r.Src.IsValid() && !r.Dst.IsValid() && r.SrcPort == 0 && r.DstPort == 0:
		return 0, refuse(syscall.EINVAL, "rule without an address, a port or an SPI would take everything")
	case len(s.Rules) >= limit:
		return 0, refuse(syscall.ENOSPC, "rule table is full: %d rules", limit)
	}
	for _, o := range s.Rules {
		if o.ID, o.Queue = 0, r.Queue; o == r {
			return 0, refuse(syscall.EEXIST, "there is a rule for this flow")
		}
	}
	r.ID = s.nextID()
	s.Rules = slices.Concat(s.Rules, []FlowRule{r})
	return r.ID, nil
}

// DelFlow deletes a rule.
func (s *State) DelFlow(id uint32) error {
	return del(&s.Rules, id, "rule")
}

// SetRSS sets receive side scaling. The number of entries in its table must be a power of two up to limit.
func (s *State) SetRSS(r RSS, limit int) error {
	if n := len(r.Table); n == 0 || n > limit || n&(n-1) != 0 {
		return refuse(syscall.EINVAL, "RSS table of %d entries: not a power of two up to %d", n, limit)
	}
	for i, q := range r.Table {
		if int(q) >= len(s.Splits) {
			return refuse(syscall.EINVAL, "RSS table: entry %d is queue %d: the port has %d", i, q, len(s.Splits))
		}
	}
	r.Table = slices.Clone(r.Table)
	s.RSS = r
	return nil
}

// AddBuffer adds a buffer with the number b.ID, which no other buffer may have.
func (s *State) AddBuffer(b Buffer) {
	i, _ := slices.BinarySearchFunc(s.Buffers, b.ID, func(o Buffer, id uint32) int { return int(int64(o.ID) - int64(id)) })
	s.Buffers = slices.Insert(slices.Clip(s.Buffers), i, b)
}

// DelBuffer removes a buffer. EBUSY: it is bound.
func (s *State) DelBuffer(id uint32) error {
	for _, n := range s.Bindings {
		if n.Buffer == id {
			return refuse(syscall.EBUSY, "buffer %d is bound (binding %d)", id, n.ID)
		}
	}
	return del(&s.Buffers, id, "buffer")
}

// Buffer returns the registered buffer with an ID; false: there is none.
func (s *State) Buffer(id uint32) (Buffer, bool) {
	if i := find(s.Buffers, id); i >= 0 {
		return s.Buffers[i], true
	}
	return Buffer{}, false
}

// Bound returns the ID of the binding of a receive queue; 0: it is not bound.
func (s *State) Bound(queue uint16) uint32 {
	for _, n := range s.Bindings {
		if !n.Tx && slices.Contains(n.Queues, queue) {
			return n.ID
		}
	}
	return 0
}

// BindRx binds queues, all or none, to a buffer, if there are fewer than limit bindings. EBUSY: another
// receive binding has some of the buffer's bytes (Linux permits that).
func (s *State) BindRx(buffer uint32, queues []uint16, limit int) (uint32, error) {
	b, ok := s.Buffer(buffer)
	switch {
	case !ok:
		return 0, refuse(syscall.EBADF, "buffer %d is not registered", buffer)
	case len(queues) == 0:
		return 0, refuse(syscall.EINVAL, "binding without queues")
	case len(s.Bindings) >= limit:
		return 0, refuse(syscall.ENOSPC, "all %d bindings are in use", limit)
	}
	queues = slices.Clone(queues)
	slices.Sort(queues)
	queues = slices.Compact(queues)
	for _, q := range queues {
		switch {
		case int(q) >= len(s.Splits):
			return 0, refuse(syscall.EINVAL, "queue %d: the port has %d", q, len(s.Splits))
		case q == 0:
			return 0, refuse(syscall.ERANGE, "queue 0 cannot be bound: it takes what must be readable")
		case !s.Splits[q].On:
			return 0, refuse(syscall.EINVAL, "tcp-data-split is disabled (queue %d)", q)
		case s.Splits[q].Threshold != 0:
			return 0, refuse(syscall.EINVAL, "hds-thresh is not zero (queue %d)", q)
		case s.Bound(q) != 0:
			return 0, refuse(syscall.EEXIST, "designated queue already memory provider bound (queue %d)", q)
		}
	}
	for _, n := range s.Bindings {
		if o, ok := s.Buffer(n.Buffer); ok && !n.Tx && o.GPU == b.GPU && o.Off < b.Off+b.Size && b.Off < o.Off+o.Size {
			return 0, refuse(syscall.EBUSY, "buffer %d overlaps buffer %d, which is bound for receive (binding %d)", b.ID, o.ID,
				n.ID)
		}
	}
	return s.bind(Binding{Buffer: buffer, Queues: queues}), nil
}

// BindTx permits transmission from a buffer, if there are fewer than limit bindings.
func (s *State) BindTx(buffer uint32, limit int) (uint32, error) {
	if _, ok := s.Buffer(buffer); !ok {
		return 0, refuse(syscall.EBADF, "buffer %d is not registered", buffer)
	}
	if len(s.Bindings) >= limit {
		return 0, refuse(syscall.ENOSPC, "all %d bindings are in use", limit)
	}
	return s.bind(Binding{Buffer: buffer, Tx: true}), nil
}

func (s *State) bind(n Binding) uint32 {
	n.ID = s.nextID()
	s.Bindings = slices.Concat(s.Bindings, []Binding{n})
	return n.ID
}

// Unbind removes a binding.
func (s *State) Unbind(id uint32) error {
	return del(&s.Bindings, id, "binding")
}

// AddFlowCounter adds a flow counter with a new ID, and returns the ID. limit bounds the number of flow counters
// (ENOSPC). A connection may have several.
func (s *State) AddFlowCounter(m FlowCounter, limit int) (uint32, error) {
	m.ID = 0
	if _, err := encode(nil, m); err != nil {
		return 0, err
	}
	if m.Proto != 6 && m.Proto != 17 {
		return 0, refuse(syscall.EOPNOTSUPP, "meter for protocol %d: only TCP (6) and UDP (17) have meters", m.Proto)
	}
	if len(s.FlowCounters) >= limit {
		return 0, refuse(syscall.ENOSPC, "all %d meters are in use", limit)
	}
	m.ID = s.nextID()
	s.FlowCounters = slices.Concat(s.FlowCounters, []FlowCounter{m})
	return m.ID, nil
}

// DelFlowCounter removes a flow counter.
func (s *State) DelFlowCounter(id uint32) error {
	return del(&s.FlowCounters, id, "meter")
}

func (s *State) nextID() uint32 {
	s.LastID++
	return s.LastID
}

func find[T element](elems []T, id uint32) int {
	return slices.IndexFunc(elems, func(e T) bool { return e.number() == id })
}

func del[T element](elems *[]T, id uint32, what string) error {
	i := find(*elems, id)
	if i < 0 {
		return refuse(syscall.ENOENT, "no %s %d", what, id)
	}
	*elems = slices.Delete(slices.Clone(*elems), i, i+1)
	return nil
}
