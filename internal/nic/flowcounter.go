package nic

import (
	"sync"

	"vnic.dev/vnic/internal/control"
	"vnic.dev/vnic/splitter"
)

// flowCounter counts the packets of one connection on one port.
type flowCounter struct {
	id     uint32
	rx, tx direction
}

type direction struct {
	flow splitter.Flow

	mu sync.Mutex
	Counters
	seen seen
}

// count adds a packet of n payload bytes. Of a TCP packet it adds to RetransBytes the payload bytes whose sequence
// numbers are in seen already.
func (d *direction) count(h *splitter.Headers, segments, header, n uint64, w *bytesByMem) {
	d.mu.Lock()
	defer d.mu.Unlock()
	var one delta
	one.count(segments, header, w)
	one.flush(&d.Counters)
	if h.Class != splitter.TCP {
		return
	}
	from := h.Seq
	if h.TCPFlags&splitter.SYN != 0 {
		from++ // SYN takes one sequence number
		d.seen.begin(from)
	}
	if again := d.seen.add(from, uint32(n)); again > 0 {
		add(&d.live.RetransBytes, uint64(again))
	}
}

func (d *direction) lose(n uint64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	var one delta
	one.drop(n)
	one.flush(&d.Counters)
}

func counterFlows(m control.FlowCounter) (rx, tx splitter.Flow) {
	local, remote := m.Local.Addr().Unmap(), m.Remote.Addr().Unmap()
	rx = splitter.Flow{Proto: m.Proto, IPv6: !local.Is4(), SrcPort: m.Remote.Port(), DstPort: m.Local.Port()}
	copy(rx.Src[:], remote.AsSlice())
	copy(rx.Dst[:], local.AsSlice())
	tx = rx
	tx.Src, tx.Dst, tx.SrcPort, tx.DstPort = rx.Dst, rx.Src, rx.DstPort, rx.SrcPort
	return rx, tx
}

// maxRanges bounds the ranges of sequence numbers above a gap that seen keeps.
const maxRanges = 256

// seen is the set of sequence numbers of a TCP flow's payload bytes that were counted. It distinguishes a byte that
// is sent again from one that comes late, unless add has given up the gap with the late byte, or the byte is below
// start. Numbers are compared by their distance to edge, so they may wrap.
type seen struct {
	begun  bool
	start  uint32
	edge   uint32 // all numbers below count as in the set
	n      int
	ranges [maxRanges]seqRange // ranges[:n] are above edge: sorted, with gaps before and between them
}

type seqRange struct{ from, to uint32 }

// begin clears the set, for a connection whose first payload byte has the number start. It changes nothing if the set
// began with this number (a repeated SYN).
func (s *seen) begin(start uint32) {
	if s.begun && s.start == start {
		return
	}
	s.begun, s.start, s.edge, s.n = true, start, start, 0
}

// add adds [from, from+n) and returns how many of these numbers were in the set before.
func (s *seen) add(from, n uint32) (again uint32) {
	if n == 0 {
		return 0
	}
	if !s.begun {
		s.begin(from)
	}
	lo := int64(int32(from - s.edge))
	hi := lo + int64(n)
	if lo < 0 {
		if hi <= 0 {
			return n
		}
		again, lo = uint32(-lo), 0
	}
	if s.n == 0 && lo == 0 {
		s.edge += uint32(hi)
		return again
	}
	// Ranges [i, j) overlap or touch [lo, hi); they are merged with it.
	i := s.n
	for i > 0 && int64(s.ranges[i-1].to-s.edge) >= lo {
		i--
	}
	j := i
	first, last := lo, hi
	for j < s.n && int64(s.ranges[j].from-s.edge) <= hi {
		a, b := int64(s.ranges[j].from-s.edge), int64(s.ranges[j].to-s.edge)
		again += uint32(max(0, min(b, hi)-max(a, lo)))
		first, last = min(first, a), max(last, b)
		j++
	}
	one := seqRange{s.edge + uint32(first), s.edge + uint32(last)}
	switch {
	case first == 0: // edge moves behind the merged range
		s.edge = one.to
		s.n = copy(s.ranges[:], s.ranges[j:s.n])
	case j > i:
		s.ranges[i] = one
		s.n = i + 1 + copy(s.ranges[i+1:], s.ranges[j:s.n])
	default:
		if s.n == maxRanges { // add gives up the lowest gap: from now on its numbers count as in the set
			if i == 0 {
				s.edge = one.to
				return again
			}
			s.edge = s.ranges[0].to
			s.n = copy(s.ranges[:], s.ranges[1:s.n])
			i--
		}
		copy(s.ranges[i+1:s.n+1], s.ranges[i:s.n])
		s.ranges[i] = one
		s.n++
	}
	return again
}
