package nic

import (
	"vnic.dev/vnic/dma"
	"vnic.dev/vnic/internal/lab/shape"
	"vnic.dev/vnic/internal/wire"
)

// Shape limits the rates of a port's packets and copies by the routes that they take over links and memories.
type Shape struct {
	Tx, Rx           Routes
	ToHost, FromHost [dma.MaxGPUs]CopyRoutes // for copies by the port's gpumem.Engine, by GPU
}

// CopyRoutes are the routes of copies between a GPU and host memory, in one direction.
type CopyRoutes struct {
	Host  *shape.Route
	Nodes [dma.MaxNodes]*shape.Route // by NUMA node of the host memory; nil: as Host
}

func (r *CopyRoutes) route(node int) *shape.Route {
	if node >= 0 && r.Nodes[node] != nil {
		return r.Nodes[node]
	}
	return r.Host
}

// Routes are the routes of one direction. A packet with payload in several memories takes the route of the first
// GPU among them, or, without a GPU, of the first known NUMA node. On receive, a packet takes the route found so for
// the packet that its queue took last (arrives), and an RDMA packet the route of the last one (roce.receive).
type Routes struct {
	Host    *shape.Route               // for packets without payload, or with payload in host memory only
	Nodes   [dma.MaxNodes]*shape.Route // for payload in a NUMA node's host memory; nil: as Host
	Direct  [dma.MaxGPUs]*shape.Route  // for payload in a GPU's memory, peer to peer
	Bounced [dma.MaxGPUs]*shape.Route  // for payload in a GPU's memory, through host memory
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

// WireBytes returns how many bytes packets take on the wire that have these sums of payload and header bytes and of
// segments. Each segment is a frame with the packets' mean header length, wire.EtherOverhead, and no padding.
func WireBytes(payload, header, packets, segments uint64) float64 {
	if packets == 0 {
		return 0
	}
	return float64(payload) + float64(segments)*(float64(header)/float64(packets)+wire.EtherOverhead)
}

// gate lets packets of a batch into links, in their order. A packet whose links are in use, or that is behind a packet
// that waits, reserves its links for a later time, as long as the waiting packets with reservations have at most turn
// bytes together.
type gate struct {
	shape *Shape
	now   int64  // time (shape.Now); 0: not read yet
	until int64  // when the links of the first waiting packet are free; 0: no packet waits
	last  int64  // the same for the last waiting packet with a reservation
	turn  uint32 // bytes of the waiting packets with a reservation, or the constant turn: no more get one
}

// turn is how many bytes of a batch, at most, may wait with a reservation.
const turn = MaxFrame

// passes reports whether packet p may pass now; otherwise passes makes p Busy. *start is when p's reserved links are
// free; 0: p has no reservation yet, and passes may make one. If alone is set, only the first waiting packet of a
// batch gets a reservation.
func (g *gate) passes(p *wire.Packet, start *int64, r *shape.Route, u shape.Use, alone bool) bool {
	if g.now == 0 || *start > g.now { // time may have passed
		g.now = shape.Now()
	}
	if *start == 0 {
		if g.until != 0 && (alone || g.turn+p.Len() > turn) {
			p.Verdict = wire.Verdict{Kind: wire.Busy, Until: g.until}
			g.turn = turn // so that no shorter packet behind p gets a reservation either
			return false
		}
		*start = max(r.Take(g.now, u), 1)
	}
	*start = max(*start, g.last) // p does not overtake the last waiting packet
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

// arrives reports whether a packet may come in now; otherwise the packet is Busy. The packet's buffers are not known
// yet, so it takes the route of the packet that the queue took last, or Rx.Host before the first. A flooded packet
// (wire.Worker.Flooding) does not wait.
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
