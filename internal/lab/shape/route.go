package shape

import "slices"

// Use is a packet's size: bytes of payload and of header, the number of its buffers, and its bytes on the wire.
type Use struct {
	Payload uint32
	Header  uint32
	Buffers uint32
	Wire    uint32 // bytes of all segments, with Ethernet's overhead
}

// Share is how many bytes an edge carries per byte of payload, per byte of header, per buffer, per packet, and per byte
// on the wire.
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

// Bytes returns how many bytes the edge carries for a packet.
func (s *Share) Bytes(u Use) float64 {
	return s.Payload*float64(u.Payload) + s.Header*float64(u.Header) + s.Buffer*float64(u.Buffers) + s.Packet +
		s.Wire*float64(u.Wire)
}

// Route is the edges that packets take; nil: none.
type Route struct {
	clock *Clock
	hops  []hop
}

type hop struct {
	Share
	perByte float64 // nanoseconds per byte, at scale 1
}

// maxCost is the maximum of a packet's time on an edge, an hour in nanoseconds, so that sums do not overflow.
const maxCost = 3600e9

// NewRoute makes a route, and adds up shares of the same edge. Without shares it returns nil.
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

// Take reserves the route's edges for a packet that arrives at the time now, and returns the time from which the packet
// may pass; 0: now. If r is nil or the clock's scale is 0, it reserves nothing and returns 0.
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

// slips bounds the time that counts as short: less than 1/slips of the packet's longest time on an edge. Bytes that
// need an edge for a short time, such as requests, pass between other packets' bytes, as in PCIe: the packet waits for
// that edge only if the edge is taken for longer than the lag in Take.
const slips = 4

// maxHops bounds the edges of a route: links above eight switches and an endpoint at two ends, both ways, and
// sockets' links and memories.
const maxHops = 64
