package shape

import "slices"

// Use is what a packet needs of the edges of its route, in bytes.
type Use struct {
	Payload uint32
	Header  uint32
	Buffers uint32 // how many, not bytes
	Wire    uint32 // payload and headers of all its segments, with what Ethernet adds to each
}

// Share is what an edge carries of a packet: bytes for each byte of payload and header, for each buffer and packet, and
// for each byte that is on the wire.
type Share struct {
	Edge                                  *Edge
	Payload, Header, Buffer, Packet, Wire float64
}

func (s *Share) add(o *Share) {
	s.Payload += o.Payload
	s.Header += o.Header
	s.Buffer += o.Buffer
	s.Packet += o.Packet
	s.Wire += o.Wire
}

// Bytes is how many bytes the edge carries of a packet.
func (s *Share) Bytes(u Use) float64 {
	return s.Payload*float64(u.Payload) + s.Header*float64(u.Header) + s.Buffer*float64(u.Buffers) + s.Packet +
		s.Wire*float64(u.Wire)
}

// Route is the edges that packets take. A nil Route has none.
type Route struct {
	clock *Clock
	hops  []hop
}

// hop is a Share in nanoseconds.
type hop struct {
	Share
	perByte float64 // nanoseconds
}

// maxCost keeps sums of times in their range: an hour, for one packet.
const maxCost = 3600e9

// NewRoute makes a route; of several shares of an edge it takes the sum. Without any it is nil.
func NewRoute(c *Clock, shares []Share) *Route {
	r := &Route{clock: c}
	for _, s := range shares {
		i := slices.IndexFunc(r.hops, func(h hop) bool { return h.Edge == s.Edge })
		if i >= 0 {
			r.hops[i].add(&s)
			continue
		}
		r.hops = append(r.hops, hop{s, 1e9 / s.Edge.rate})
	}
	if len(r.hops) == 0 {
		return nil
	}
	return r
}

// Take gives a packet all edges of the route, each from when it is free on, and says from when on it has them all:
// then it may pass. 0: at once.
func (r *Route) Take(now int64, u Use) (start int64) {
	if r == nil {
		return 0
	}
	scale := r.clock.Scale()
	if scale == 0 {
		return 0
	}
	var costs [maxHops]int64
	longest := int64(0)
	for i := range r.hops {
		h := &r.hops[i]
		c := int64(min(h.Bytes(u)*h.perByte*scale, maxCost))
		costs[i&(maxHops-1)] = c
		longest = max(longest, c)
	}
	lag := max(int64(Credit), 2*longest)
	for i := range r.hops {
		c := costs[i&(maxHops-1)]
		from := r.hops[i].Edge.take(now-lag, c)
		if c < longest/slips {
			from -= lag
		}
		start = max(start, from)
	}
	if start <= now {
		return 0
	}
	return start
}

// slips: what a packet needs less than that part of the time for which it has its slowest edge, as its requests,
// slips in between others' bytes, as on PCIe, and does not wait for all of a packet before it, unless the edge is
// behind by more than the credit.
const slips = 4

// maxHops is how many edges a route has at most: eight switches, a port above each and above both ends, twice, and
// memories and links of sockets are fewer.
const maxHops = 64
