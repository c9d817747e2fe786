package nic

import (
	"slices"

	"vnic.dev/vnic/control"
	"vnic.dev/vnic/splitter"
	"vnic.dev/vnic/wire"
)

// steering is what decides the queue and the split of a received packet; immutable, replaced whole.
type steering struct {
	rss    *splitter.RSS
	types  uint32 // what is hashed
	hashes bool   // queues want hashes
	limit  uint32 // HeaderLimit
	unsp   int    // queue for frames that cannot be split, or -1: their own
	splits []splitPolicy
}

type splitPolicy struct {
	on        bool
	threshold uint32
}

// route is where a packet goes.
type route struct {
	home    int // the queue of its flow
	q       int // the queue that gets it
	split   bool
	unsplit bool   // it should have been split, and cannot be
	hlen    uint32 // of a split packet: bytes for the header buffer
	hashed  bool
	hash    uint32
}

// steer finds the receive queue of a packet, and whether and where it is split.
func (p *Port) steer(s *steering, pkt *wire.Packet) (r route) {
	h := &pkt.Meta.Headers
	if h.Class != splitter.NotIP && h.Class != splitter.Malformed {
		to, ruled := p.rules.Lookup(&h.Flow)
		if s.hashes || !ruled && len(s.rss.Table) > 1 {
			r.hash, r.hashed = s.hash(h)
		}
		switch {
		case ruled:
			r.home = int(to)
		case r.hashed:
			r.home = int(s.rss.Queue(r.hash))
		default: // what is not to be hashed goes to the table's first
			r.home = int(s.rss.Table[0])
		}
	}
	if r.home >= len(s.splits) { // commands refuse such queues
		r.home = 0
	}
	r.q = r.home
	pol := &s.splits[r.home]
	if !pol.on || pkt.PayloadLen < pol.threshold {
		return r
	}
	n, ok := h.SplitLen(s.limit)
	if h.Class != splitter.TCP {
		n = pkt.Len() // all of it, whatever its headers say
		ok = ok && n <= s.limit
	}
	if !ok {
		r.unsplit = true
		if s.unsp >= 0 {
			r.q = s.unsp
		}
		return r
	}
	r.split, r.hlen = true, n
	return r
}

// hashTypes are what RSS can hash: 4-tuples of TCP and UDP, 2-tuples of the rest.
const hashTypes = control.HashIPv4 | control.HashTCPv4 | control.HashUDPv4 | control.HashIPv6 | control.HashTCPv6 | control.HashUDPv6

// hash gives the RSS hash of an IP packet, if it is to be hashed.
func (s *steering) hash(h *splitter.Headers) (hash uint32, ok bool) {
	pair, tcp, udp := uint32(control.HashIPv4), uint32(control.HashTCPv4), uint32(control.HashUDPv4)
	if h.IPv6 {
		pair, tcp, udp = control.HashIPv6, control.HashTCPv6, control.HashUDPv6
	}
	switch {
	case h.Class == splitter.TCP && s.types&tcp != 0, h.Class == splitter.UDP && s.types&udp != 0:
		return s.rss.Hash(&h.Flow), true
	case s.types&pair != 0:
		f := h.Flow
		f.SrcPort, f.DstPort = 0, 0 // zeros add nothing to the hash
		return s.rss.Hash(&f), true
	}
	return 0, false
}

// steerAnew makes the steering that the state asks for. The caller holds mu.
func (p *Port) steerAnew() {
	s := &steering{limit: p.conf.HeaderLimit, unsp: p.conf.UnsplitQueue, types: p.state.RSS.HashTypes, hashes: p.conf.Hash}
	rss, err := splitter.NewRSS(p.state.RSS.Key, p.state.RSS.Table)
	if err != nil {
		rss, _ = splitter.NewRSS(p.state.RSS.Key, []uint16{0})
	}
	s.rss = rss
	for _, sp := range p.state.Splits {
		s.splits = append(s.splits, splitPolicy{on: sp.On, threshold: sp.Threshold})
	}
	p.steering.Store(s)
}

// spreadTable is a length that is even enough for any number of queues.
const spreadTable = 128

// Spread says which receive queues the driver uses: they are enabled, and have had buffers. Flows are spread over them for as
// long as nobody has set RSS and no driver of ours has said Hello, which keeps queues for what it binds: one that knows nothing
// of our commands, as the kernel's virtio_net, expects it of a device that has no RSS.
func (p *Port) Spread(queues []uint16) {
	table := []uint16{0}
	if len(queues) > 1 {
		table = make([]uint16, min(spreadTable, p.conf.MaxRSS))
		for i := range table {
			table[i] = queues[i%len(queues)]
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.known && !p.asked && !slices.Equal(p.state.RSS.Table, table) {
		p.state.RSS.Table = table
		p.steerAnew()
	}
}
