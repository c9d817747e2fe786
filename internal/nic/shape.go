package nic

import (
	"vnic.dev/vnic/dma"
	"vnic.dev/vnic/internal/lab/shape"
	"vnic.dev/vnic/internal/wire"
)

// Shape limits a port's rate by the routes over links and memories that its packets take.
type Shape struct {
	Tx, Rx           Routes
	ToHost, FromHost [dma.MaxGPUs]CopyRoutes // for copies by the port's gpumem.Engine, by GPU
}

// CopyRoutes are the routes of copies between a GPU and host memory, in one direction.
type CopyRoutes struct {
	Host  *shape.Route
	Nodes [dma.MaxNodes]*shape.Route // nil: as Host
}

func (r *CopyRoutes) route(node int) *shape.Route {
	if node >= 0 && r.Nodes[node] != nil {
		return r.Nodes[node]
	}
	return r.Host
}

// Routes are the routes of one direction. A packet with payload in several memories takes the route of the first
// GPU, or without one of the first NUMA node.
type Routes struct {
	Host    *shape.Route               // payload in host memory, or none
	Nodes   [dma.MaxNodes]*shape.Route // nil: as Host
	Direct  [dma.MaxGPUs]*shape.Route  // payload in a GPU's memory
	Bounced [dma.MaxGPUs]*shape.Route  // payload in a GPU's memory, through host memory
}

func (r *Routes) route(w *bytesByMem, bounced bool) *shape.Route {
	switch {
	case w.gpu == 0 && w.node != 0 && r.Nodes[w.node-1] != nil:
		return r.Nodes[w.node-1]
	case w.gpu == 0:
		return r.Host
	case bounced:
		return r.Bounced[w.gpu-1]
	}
	return r.Direct[w.gpu-1]
}

func use(p *wire.Packet, buffers uint32) shape.Use {
	return shape.Use{Payload: p.PayloadLen, Header: uint32(len(p.Header)), Buffers: buffers, Wire: p.WireLen()}
}

// WireBytes returns the bytes on the wire of these packets, which become frames, segments in number, with headers
// of the mean length, without the padding of short frames.
func WireBytes(payload, header, packets, segments uint64) float64 {
	if packets == 0 {
		return 0
	}
	return float64(payload) + float64(segments)*(float64(header)/float64(packets)+wire.EtherOverhead)
}

// gate lets packets of a batch into links, in their order. A packet that finds its links in use reserves them
// for a later time; up to turn bytes of a batch may have a reservation.
type gate struct {
	shape *Shape
	now   int64 // 0: not read yet
	until int64 // when the links of the first waiting packet are free; 0: none waits
	last  int64
	turn  uint32
}

// turn is how many bytes of a batch may wait with a reservation.
const turn = MaxFrame

// passes reports whether a packet may pass now; otherwise it makes it Busy. start is when its reserved links are
// free; 0: no reservation. With alone only the first waiting packet of a batch gets one.
func (g *gate) passes(p *wire.Packet, start *int64, r *shape.Route, u shape.Use, alone bool) bool {
	if g.now == 0 || *start > g.now { // time may have passed
		g.now = shape.Now()
	}
	if *start == 0 {
		if g.until != 0 && (alone || g.turn+p.Len() > turn) {
			p.Verdict = wire.Verdict{Kind: wire.Busy, Until: g.until}
			g.turn = turn // no shorter packet behind it may get a reservation
			return false
		}
		*start = max(r.Take(g.now, u), 1)
	}
	*start = max(*start, g.last) // no packet overtakes the previous one
	if *start <= g.now && g.until == 0 {
		return true
	}
	if g.until == 0 {
		g.until = *start
	}
	g.last = *start
	g.turn += p.Len()
	p.Verdict = wire.Verdict{Kind: wire.Busy, Until: g.until}
	return false
}

func (g *gate) leaves(p *wire.Packet, w *bytesByMem, direct bool) bool {
	return g.passes(p, &p.Leaves, g.shape.Tx.route(w, !direct), use(p, w.buffers), false)
}

// arrives reports whether a packet may come in now. Its buffers are not known yet, so it takes the links of the
// queue's previous packet.
func (rq *rxQueue) arrives(d *delivery, p *wire.Packet) bool {
	if rq.way == nil {
		rq.way = d.gate.shape.Rx.Host
	}
	if d.w.Flooding() {
		rq.way.Take(shape.Now(), use(p, rq.pieces))
		return true
	}
	return d.gate.passes(p, p.Progress.Arrives(), rq.way, use(p, rq.pieces), d.w.Cutting())
}

func (rq *rxQueue) took(s *Shape) {
	w := &rq.mover.byMem
	rq.way, rq.pieces = s.Rx.route(w, w.bounced > 0), w.buffers
}
