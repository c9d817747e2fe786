package nic

import (
	"vnic.dev/vnic/dma"
	"vnic.dev/vnic/shape"
	"vnic.dev/vnic/wire"
)

// Shape is what slows a port down: the edges of links and memories that its packets cross, by where their payload is.
type Shape struct {
	Tx, Rx           Routes
	ToHost, FromHost [dma.MaxGPUs]*shape.Route // of the copies of a GPU's engines
}

// Routes are those of one direction. A packet whose payload is in several memories takes the route of the first GPU.
type Routes struct {
	Host    *shape.Route              // payload in host memory, or none
	Direct  [dma.MaxGPUs]*shape.Route // in the memory of a GPU, by its number
	Bounced [dma.MaxGPUs]*shape.Route // likewise, where it goes through host memory
}

func (r *Routes) of(w *bytesByMem, bounced bool) *shape.Route {
	switch {
	case w.gpu == 0:
		return r.Host
	case bounced:
		return r.Bounced[w.gpu-1]
	}
	return r.Direct[w.gpu-1]
}

// Ethernet adds to each frame on the wire a preamble, a checksum and a gap (IEEE 802.3, clauses 3.1.1 and 4.4.2), and
// pads short ones.
const (
	etherOverhead = 8 + 4 + 12
	etherLeast    = 60
)

// use is what a packet needs of the links, where buffers are as many as hold it.
func use(p *wire.Packet, buffers uint32) shape.Use {
	n, h := p.Segments(), uint32(len(p.Header))
	return shape.Use{Payload: p.PayloadLen, Header: h, Buffers: buffers,
		Wire: p.PayloadLen + max(h, etherLeast-min(etherLeast, p.PayloadLen/n))*n + n*etherOverhead}
}

// WireBytes is what packets of so many segments take of the wire, whose headers are all of the mean length.
func WireBytes(payload, header, packets, segments uint64) float64 {
	if packets == 0 {
		return 0
	}
	return float64(payload) + float64(segments)*(float64(header)/float64(packets)+etherOverhead)
}

// gate lets packets of a batch into the links, in their order: behind one that has to wait all wait.
type gate struct {
	shape *Shape
	now   int64 // 0: the clock has not been read
	until int64 // 0: open
}

// leave lets a packet into the links of its sender. false: it has its verdict.
func (g *gate) leave(p *wire.Packet, w *bytesByMem, direct bool) bool {
	if p.Left {
		return true // before it met a busy receiver
	}
	if g.until == 0 {
		if r := g.shape.Tx.of(w, !direct); g.open(r) {
			r.Take(g.now, use(p, w.buffers))
			p.Left = true
			return true
		}
	}
	p.Verdict = wire.Verdict{Kind: wire.Busy, Until: g.until}
	return false
}

// open says whether a packet of that route may pass now.
func (g *gate) open(r *shape.Route) bool {
	if g.now == 0 {
		g.now = shape.Now()
	}
	if g.until = r.Ready(g.now); g.until > 0 { // the batch may have taken a while
		g.now = shape.Now()
		g.until = r.Ready(g.now)
	}
	return g.until == 0
}

// arrives says whether a packet may come in over the links of its receiver, which nobody knows before there is a place for
// it: those of the one before in its queue are asked. false: it has its verdict.
func (rq *rxQueue) arrives(d *delivery, p *wire.Packet) bool {
	if rq.way == nil {
		rq.way = d.gate.shape.Rx.Host
	}
	if d.w.Flooding() || d.gate.until == 0 && d.gate.open(rq.way) {
		return true
	}
	p.Verdict = wire.Verdict{Kind: wire.Busy, Until: d.gate.until}
	return false
}

// took has a packet that was put into the queue take the links that it came by.
func (rq *rxQueue) took(p *wire.Packet) {
	s := rq.mover.port.conf.Shape
	if s == nil {
		return
	}
	w := &rq.mover.byMem
	rq.way = s.Rx.of(w, w.bounced > 0)
	rq.way.Take(shape.Now(), use(p, w.buffers))
}
