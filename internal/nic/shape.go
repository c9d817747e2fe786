package nic

import (
	"vnic.dev/vnic/dma"
	"vnic.dev/vnic/internal/lab/shape"
	"vnic.dev/vnic/internal/wire"
)

// Shape is what slows a port down: the edges of links and memories that its packets cross, by where their payload is.
type Shape struct {
	Tx, Rx           Routes
	ToHost, FromHost [dma.MaxGPUs]CopyRoutes // of the copies of a GPU's engines
}

// CopyRoutes are those between a GPU and host memory.
type CopyRoutes struct {
	Host  *shape.Route
	Nodes [dma.MaxNodes]*shape.Route // host memory of a NUMA node; nil: as Host
}

func (r *CopyRoutes) of(node int) *shape.Route {
	if node >= 0 && r.Nodes[node] != nil {
		return r.Nodes[node]
	}
	return r.Host
}

// Routes are those of one direction. A packet whose payload is in several memories takes the route of the first GPU.
type Routes struct {
	Host    *shape.Route               // payload in host memory, or none
	Nodes   [dma.MaxNodes]*shape.Route // payload in that of a NUMA node; nil: as Host
	Direct  [dma.MaxGPUs]*shape.Route  // in the memory of a GPU, by its number
	Bounced [dma.MaxGPUs]*shape.Route  // likewise, where it goes through host memory
}

func (r *Routes) of(w *bytesByMem, bounced bool) *shape.Route {
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

// use is what a packet needs of the links, where buffers are as many as hold it.
func use(p *wire.Packet, buffers uint32) shape.Use {
	return shape.Use{Payload: p.PayloadLen, Header: uint32(len(p.Header)), Buffers: buffers, Wire: p.WireLen()}
}

// WireBytes is what packets of so many segments take of the wire, whose headers are all of the mean length,
// without the padding of short ones.
func WireBytes(payload, header, packets, segments uint64) float64 {
	if packets == 0 {
		return 0
	}
	return float64(payload) + float64(segments)*(float64(header)/float64(packets)+wire.EtherOverhead)
}

// gate lets packets of a batch into links, in their order. Those that find links taken get them from some time on, turn
// bytes of them; all behind wait without. So those who share a link get it in turn, as many bytes each.
type gate struct {
	shape *Shape
	now   int64  // 0: the clock has not been read
	until int64  // of the first that waits; 0: open
	last  int64  // of the last one
	turn  uint32 // bytes that wait
}

// turn is how many bytes of a queue may wait for links that they have: the longest packet.
const turn = MaxFrame

// passes says whether a packet may pass that got links from start on; 0: it has none yet.
func (g *gate) passes(p *wire.Packet, start *int64, r *shape.Route, u shape.Use, alone bool) bool {
	if g.now == 0 || *start > g.now { // the batch may have taken a while
		g.now = shape.Now()
	}
	if *start == 0 {
		if g.until != 0 && (alone || g.turn+p.Len() > turn) {
			p.Verdict = wire.Verdict{Kind: wire.Busy, Until: g.until}
			g.turn = turn // those behind wait, too
			return false
		}
		*start = max(r.Take(g.now, u), 1)
	}
	*start = max(*start, g.last) // nobody overtakes
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

// leaves says whether a packet may leave over the links of its sender; else it has its verdict.
func (g *gate) leaves(p *wire.Packet, w *bytesByMem, direct bool) bool {
	return g.passes(p, &p.Leaves, g.shape.Tx.of(w, !direct), use(p, w.buffers), false)
}

// arrives says whether a packet may come in over the links of its receiver; else it has its verdict. Nobody knows these
// before there is a place for it: they are those of the one before in its queue.
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

// took notes by which links a packet came.
func (rq *rxQueue) took(s *Shape) {
	w := &rq.mover.byMem
	rq.way, rq.pieces = s.Rx.of(w, w.bounced > 0), w.buffers
}
