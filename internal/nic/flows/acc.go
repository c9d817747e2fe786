package flows

import (
	"cmp"
	"hash/maphash"

	"vnic.dev/vnic/splitter"
)

const accs = 8

// Acc accumulates counts of a flow until the Shard's next Flush. A pointer to it is valid until the next At or Flush.
type Acc struct {
	flow  splitter.Flow
	flags uint8
	begun bool
	first uint32 // sequence number of the first payload that the Acc has recorded
	top   uint32 // sequence number behind its highest payload byte
	bytes uint32 // its payload bytes that are not in Again
	Rule  uint32 // id of the rule that steers the flow, set by the Shard's owner; 0: none, or not set
	Peer
	Counts
}

// Fresh reports whether the Acc has counted no packet and no lost payload yet.
func (a *Acc) Fresh() bool { return a.Packets == 0 && a.Lost == 0 }

// At returns the Acc of a flow. It first calls Flush if the flow has no Acc and all Accs are in use. Only the Shard's
// owner may call At.
func (s *Shard) At(f *splitter.Flow) *Acc {
	if s.place < s.n && s.accs[s.place].flow == *f {
		return &s.accs[s.place]
	}
	for i := range s.accs[:s.n] {
		if s.accs[i].flow == *f {
			s.place = i
			return &s.accs[i]
		}
	}
	if s.n == accs {
		s.Flush()
	}
	a := &s.accs[s.n]
	s.place = s.n
	s.n++
	a.flow = *f
	return a
}

// Acked records the acknowledgment number and the unscaled window of a TCP packet, unless the Acc has a higher
// acknowledgment number.
func (a *Acc) Acked(ack uint32, window uint16) {
	if !a.Known || int32(ack-a.Ack) >= 0 {
		a.Peer = Peer{Known: true, Ack: ack, Window: window}
	}
}

// TCP records the flags and the sequence number of a packet with n bytes of payload, and adds the bytes below the Acc's
// highest to Again.
func (a *Acc) TCP(flags uint8, seq, n uint32) {
	a.flags |= flags
	if flags&splitter.SYN != 0 {
		seq++
	}
	if n == 0 {
		return
	}
	switch end := seq + n; {
	case !a.begun:
		a.begun, a.first, a.top, a.bytes = true, seq, end, n
	case int32(end-a.top) <= 0:
		a.Again += uint64(n)
	case int32(seq-a.top) < 0:
		a.Again += uint64(a.top - seq)
		a.bytes += end - a.top
		a.top = end
	default:
		a.bytes += n
		a.top = end
	}
}

// seed makes hashOf random, so that a peer cannot choose flows with the same place in an index. The RSS hash would
// not do, as a guest chooses its key.
var seed = maphash.MakeSeed()

// hashOf is a variable for tests.
var hashOf = func(f *splitter.Flow) uint64 { return maphash.Comparable(seed, *f) }

// Flush adds the counts of all Accs to the rows of their flows, and clears the Accs. Only the Shard's owner may call
// it.
func (s *Shard) Flush() {
	if s.n == 0 {
		return
	}
	now := s.table.now()
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range s.accs[:s.n] {
		a := &s.accs[i]
		s.find(&a.flow, hashOf(&a.flow), now).take(a, now)
		*a = Acc{}
	}
	s.n = 0
}

func (r *row) take(a *Acc, now int64) {
	r.last = now
	if a.flags&splitter.SYN != 0 { // perhaps a new connection
		r.begun, r.Known = false, false
	}
	if a.Known && (!r.Known || int32(a.Ack-r.Ack) >= 0) {
		r.Peer = a.Peer
	}
	r.flags |= a.flags
	r.rule = cmp.Or(a.Rule, r.rule)
	if a.begun {
		if r.begun {
			if below := int32(r.top - a.first); below > 0 {
				a.Again += uint64(min(uint32(below), a.bytes))
			}
		}
		if !r.begun || int32(a.top-r.top) > 0 {
			r.begun, r.top = true, a.top
		}
	}
	r.add(&a.Counts)
}
