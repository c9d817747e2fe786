package rdma

import (
	"encoding/binary"

	"vnic.dev/vnic/dma"
	"vnic.dev/vnic/internal/control"
	"vnic.dev/vnic/internal/wire"
	"vnic.dev/vnic/splitter"
)

// Receive processes a frame for the port to RoCEv2's UDP port. taken reports whether it was a valid packet from the
// peer of a connected queue pair; such a packet may be discarded. The caller is inside the epochs of the port's
// Space and of the address space of p's memory, if it has one. gpu is 1 + the GPU for whose memory the payload's
// first byte was; 0: none. bounced reports whether the payload went through host memory on its way to a GPU.
func (e *Engine) Receive(c *dma.Copier, p *wire.Packet) (taken bool, gpu int, bounced bool) {
	token := e.users.Enter()
	defer e.users.Leave(token)
	var b [maxExt]byte
	var h header
	all := p.Meta.Headers.PayloadLen() // length of UDP's payload, without an Ethernet trailer
	n, err := c.Read(b[:min(maxExt, all)], p.Payload)
	switch {
	case err != nil:
		return false, 0, false // the memory of the frame's sender is gone
	case p.Meta.GSOType != splitter.GSONone || all < bthLen+icrcLen || !h.parse(b[:n]) ||
		all < h.size+uint32(h.pad)+icrcLen:
		e.count.malformed.Add(1)
		return false, 0, false
	}
	q := e.qpOf(h.qpn)
	if q == nil {
		e.count.unknown.Add(1)
		return false, 0, false
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	f := &p.Meta.Headers.Flow
	if q.dead || q.state == control.QPInit || f.Src != q.from.Src || f.Dst != q.from.Dst || f.IPv6 != q.from.IPv6 {
		e.count.unknown.Add(1)
		return false, 0, false
	}
	if !q.whole(c, p, b[:h.size], &h) {
		e.count.icrc.Add(1)
		return false, 0, false
	}
	if q.state != control.QPReady {
		q.in.Discarded++
		return true, 0, false
	}
	q.landed.gpu, q.landed.bounced = 0, false
	size := all - h.size - uint32(h.pad) - icrcLen
	q.src = dma.Cut(dma.Reuse(q.src), p.Payload, uint64(h.size), uint64(size))
	s := &shapes[h.op]
	switch {
	case !s.response:
		q.request(c, &h, size)
	case h.op == opAck:
		q.answered(&h)
	default:
		q.readAnswer(c, &h, size)
	}
	return true, q.landed.gpu, q.landed.bounced
}

func (q *qp) whole(c *dma.Copier, p *wire.Packet, ext []byte, h *header) bool {
	var b [icrcLen]byte
	end := p.Meta.Headers.PayloadLen() - icrcLen
	q.src = dma.Cut(dma.Reuse(q.src), p.Payload, uint64(end), icrcLen)
	if n, err := c.Read(b[:], q.src); err != nil || n != icrcLen {
		return false
	}
	q.src = dma.Cut(dma.Reuse(q.src), p.Payload, uint64(h.size), uint64(end-h.size))
	sum, err := q.crc.over(c, invariant(&q.head, &p.Meta.Headers, p.Header, ext), q.src)
	return err == nil && sum == binary.LittleEndian.Uint32(b[:])
}
