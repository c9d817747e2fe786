package nic

import (
	"fmt"
	"slices"
	"syscall"

	"vnic.dev/vnic/internal/control"
	"vnic.dev/vnic/internal/wire"
	"vnic.dev/vnic/splitter"
)

// steering is a State, and the tables compiled from it, or from the State as Sabotage.Steering has changed it. It is
// immutable, except for the counts of flow counters.
type steering struct {
	state        *control.State
	rules        *splitter.Rules
	rss          *splitter.RSS
	splits       []control.Split
	flowCounters []*flowCounter
}

// compile makes the steering of a State. It takes the tables and flow counters that have not changed from old, the
// previous steering.
func compile(s *control.State, old *steering) (*steering, error) {
	rules, err := compileRules(s.Rules, old)
	if err != nil {
		return nil, err
	}
	n := &steering{state: s, rules: rules, rss: old.rss, splits: s.Splits}
	if n.rss == nil || s.RSS.Key != old.state.RSS.Key || !slices.Equal(s.RSS.Table, old.state.RSS.Table) {
		if n.rss, err = splitter.NewRSS(s.RSS.Key, s.RSS.Table); err != nil {
			return nil, err
		}
	}
	for _, m := range s.FlowCounters {
		fc := old.counter(m.ID)
		if fc == nil {
			fc = &flowCounter{id: m.ID}
			fc.rx.flow, fc.tx.flow = counterFlows(m)
		}
		n.flowCounters = append(n.flowCounters, fc)
	}
	return n, nil
}

// counter returns a flow counter by id; nil: none.
func (s *steering) counter(id uint32) *flowCounter {
	for _, m := range s.flowCounters {
		if m.id == id {
			return m
		}
	}
	return nil
}

// compileRules makes the table of a list of rules. If the list is that in old with at most one more rule, compileRules
// compiles at most this rule.
func compileRules(list []control.FlowRule, old *steering) (*splitter.Rules, error) {
	if old.state != nil {
		n := len(old.state.Rules)
		if len(list) >= n && len(list) <= n+1 && slices.Equal(list[:n], old.state.Rules) {
			if len(list) == n {
				return old.rules, nil
			}
			return old.rules.With(rule(&list[n]))
		}
	}
	rules := make([]splitter.Rule, len(list))
	for i := range list {
		rules[i] = rule(&list[i])
	}
	return splitter.NewRules(rules)
}

func rule(r *control.FlowRule) splitter.Rule {
	s := splitter.Rule{ID: r.ID, Queue: r.Queue, Fields: splitter.FieldProto,
		Flow: splitter.Flow{Proto: r.Proto, IPv6: r.IPv6, SrcPort: r.SrcPort, DstPort: r.DstPort}}
	copy(s.Flow.Src[:], r.Src.AsSlice())
	copy(s.Flow.Dst[:], r.Dst.AsSlice())
	if r.Src.IsValid() {
		s.Fields |= splitter.FieldSrc
	}
	if r.Dst.IsValid() {
		s.Fields |= splitter.FieldDst
	}
	if r.SrcPort != 0 {
		s.Fields |= splitter.FieldSrcPort
	}
	if r.DstPort != 0 {
		s.Fields |= splitter.FieldDstPort
	}
	if r.HasSPI() && r.SPI() != 0 {
		s.Fields |= splitter.FieldSrcPort | splitter.FieldDstPort
	}
	return s
}

type route struct {
	home    int // receive queue of the packet's flow
	q       int // receive queue that gets the packet: home, or Config.UnsplitQueue
	split   bool
	unsplit bool   // home has header split on, but the packet cannot be split
	hlen    uint32 // bytes for the header buffer, if split; else 0
	hashed  bool   // hash is valid
	hash    uint32
}

// follow changes r from the route of the packet in before to the route of pkt, the next packet of the batch.
func (p *Port) follow(s *steering, r *route, before, pkt *wire.Packet) {
	h, b := &pkt.Meta.Headers, &before.Meta.Headers
	if h.Class != b.Class || h.Flow != b.Flow || h.AH || b.AH {
		p.steer(s, pkt, r)
		return
	}
	p.split(s, pkt, r)
}

// steer sets r to the route of a packet: its receive queue, and whether and where to split the packet.
func (p *Port) steer(s *steering, pkt *wire.Packet, r *route) {
	h := &pkt.Meta.Headers
	r.home, r.hashed, r.hash = 0, false, 0
	if h.Class != splitter.NotIP && h.Class != splitter.Malformed {
		to, ruled := s.rules.LookupFrame(h)
		if p.conf.Hash || !ruled && len(s.rss.Table) > 1 {
			r.hash, r.hashed = s.hash(h)
		}
		switch {
		case ruled:
			r.home = int(to)
		case r.hashed:
			r.home = int(s.rss.Queue(r.hash))
		default: // RSS does not hash the packet, or its table has one entry
			r.home = int(s.rss.Table[0])
		}
	}
	if r.home >= len(s.splits) { // does not happen: commands refuse queues that do not exist
		r.home = 0
	}
	p.split(s, pkt, r)
}

func (p *Port) split(s *steering, pkt *wire.Packet, r *route) {
	h := &pkt.Meta.Headers
	r.q, r.split, r.unsplit, r.hlen = r.home, false, false, 0
	split := &s.splits[r.home]
	if !split.On || pkt.PayloadLen < split.Threshold {
		return
	}
	n, ok := h.SplitLen(p.conf.HeaderLimit)
	if h.Class != splitter.TCP {
		n = pkt.Len()
		ok = ok && n <= p.conf.HeaderLimit
	}
	if !ok {
		r.unsplit = true
		if p.conf.UnsplitQueue >= 0 {
			r.q = p.conf.UnsplitQueue
		}
		return
	}
	r.split, r.hlen = true, n
}

const hashTypes = control.HashIPv4 | control.HashTCPv4 | control.HashUDPv4 |
	control.HashIPv6 | control.HashTCPv6 | control.HashUDPv6

// hash returns the RSS hash of an IP packet; ok is false if RSS does not hash its type.
func (s *steering) hash(h *splitter.Headers) (hash uint32, ok bool) {
	pair, tcp, udp := uint32(control.HashIPv4), uint32(control.HashTCPv4), uint32(control.HashUDPv4)
	if h.IPv6 {
		pair, tcp, udp = control.HashIPv6, control.HashTCPv6, control.HashUDPv6
	}
	types := s.state.RSS.HashTypes
	switch {
	case h.Class == splitter.TCP && types&tcp != 0, h.Class == splitter.UDP && types&udp != 0:
		return s.rss.Hash(&h.Flow), true
	case types&pair != 0:
		f := h.Flow
		f.SrcPort, f.DstPort = 0, 0 // zeros add nothing to the hash
		return s.rss.Hash(&f), true
	}
	return 0, false
}

// change calls f with a copy of the port's State, and makes the copy, as f has changed it, the port's State. After an
// error, the port keeps its State.
func (p *Port) change(f func(s *control.State) error) error {
	defer p.flushHeld() // flows may now move to other queues, and must not overtake their frames in held merges
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.changeLocked(f)
}

// add is change for a command that adds an object and returns its id.
func (p *Port) add(f func(s *control.State) (id uint32, err error)) (id uint32, err error) {
	err = p.change(func(s *control.State) (err error) {
		id, err = f(s)
		return err
	})
	return id, err
}

// changeLocked is change without flushHeld. The caller holds mu.
func (p *Port) changeLocked(f func(s *control.State) error) error {
	old := p.steering.Load()
	s := *old.state
	if err := f(&s); err != nil {
		return err
	}
	now, err := p.compile(&s, old)
	if err != nil { // f should have refused the change
		return fmt.Errorf("steering: %w: %w", err, syscall.EINVAL)
	}
	p.steering.Store(now)
	p.changed(old.state, &s)
	return nil
}

const defaultTableLen = 128

// defaultRSS returns the table that applies until a driver sets another: it spreads flows over the receive queues in
// use (inUse). The table has only queue 0 if fewer than two queues are in use, or if the driver has asked for Info and
// Config.QueueSplits is not set, because such a driver binds queues. The caller holds mu.
func (p *Port) defaultRSS() []uint16 {
	if n := len(p.inUse); n > 1 && (!p.known || p.conf.QueueSplits) {
		table := make([]uint16, min(defaultTableLen, p.conf.MaxRSS))
		for i := range table {
			table[i] = p.inUse[i%n]
		}
		return table
	}
	return []uint16{0}
}

// applyDefaultRSS applies the default table unless a driver has set another (rssSet). The caller holds mu.
func (p *Port) applyDefaultRSS() {
	table := p.defaultRSS()
	if p.rssSet || slices.Equal(p.steering.Load().state.RSS.Table, table) {
		return
	}
	_ = p.changeLocked(func(s *control.State) error { // NewRSS accepts this table
		s.RSS.Table = table
		return nil
	})
	p.flushSoon() // not flushHeld: the caller holds mu, and must not block in an interrupt
}

// SetDefaultRSS sets the receive queues in use, from which the port makes its default RSS table.
func (p *Port) SetDefaultRSS(queues []uint16) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.inUse = slices.Clone(queues)
	p.applyDefaultRSS()
}
