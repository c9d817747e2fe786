package shape

import "slices"

// Use is a packet's size, from which the bytes on each edge of its route follow.
type Use struct {
	Payload uint32
	Header  uint32
	Buffers uint32 // number of buffers
	Wire    uint32 // bytes of payload and headers of all its segments, with Ethernet's overhead for each
}

// Share is the number of bytes that an edge carries for a packet: per byte of payload and of
// header, per buffer, per packet, and per byte on the wire.
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

// Bytes returns the number of bytes that the edge carries for a packet.
func (s *Share) Bytes(u Use) float64 {
	return s.Payload*float64(u.Payload) + s.Header*float64(u.Header) + s.Buffer*float64(u.Buffers) + s.Packet +
		s.Wire*float64(u.Wire)
}

// Route is the edges that packets take. A nil Route has none.
type Route struct {
	clock *Clock
	hops  []hop
}

// hop is a Share with its edge's time per byte.
type hop struct {
	Share
	perByte float64 // nanoseconds
}

// maxCost bounds one packet's time on an edge, an hour, so that sums of times do not overflow.
const maxCost = 3600e9

// NewRoute makes a route, adding up several shares of one edge. Without shares it returns nil.
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

// Take reserves all edges of the route for a packet, each from the time at which it is free, and
// returns the time from which the packet may pass. 0: at once.
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

// slips: if a packet needs an edge for less than 1/slips of the time that it needs its slowest
// edge, as for its requests, the edge carries these bytes between other packets' bytes, as PCIe does.
// So they do not delay the packet, unless other packets have reserved the edge for more than the credit
// ahead.
const slips = 4

// maxHops bounds the edges of a route. A route has fewer: the links above eight switches and above the
// endpoint at each of two ends, in both directions, and memories and links of sockets.
const maxHops = 64
