package nic

import (
	"vnic.dev/vnic/dma"
)

// Mover moves the bytes of frames into a receive queue's buffers, and knows afterwards where payload came to lie. There
// is one for each receive queue, used under its lock.
type Mover struct {
	c      *dma.Copier // the sender's, for the time of a Deliver
	port   *Port
	where  where
	part   [64]dma.Segment // scratch: pieces of one copy
	rest   []dma.Segment
	bounce []dma.Segment // host memory of bounceSize, made when first needed
}

// bounceSize is the most that is bounced in one step.
const bounceSize = 64 << 10

// Header writes bytes that are not payload.
func (m *Mover) Header(dst []dma.Segment, b []byte) error {
	_, err := m.c.Write(dst, b)
	return err
}

// Payload copies payload, as many bytes as src has: dst is at least as long. Where peer to peer is not possible between
// this NIC and the GPU that dst lies in, the bytes go to host memory and the GPU's copy engine takes them on from there.
func (m *Mover) Payload(dst, src []dma.Segment) error {
	n := dma.Len(src)
	if n == 0 {
		return nil
	}
	var w where
	w.locate(dst) // dst is cut to src by the caller
	if w.device+w.gpuFile > 0 && !m.port.direct(dst) {
		if err := m.bounced(dst, src, n); err != nil {
			return err
		}
		// The NIC wrote host memory: that is what counts. The engine's copy is counted as such.
		m.where.host += w.device + w.gpuFile + w.host
		m.where.bounced += w.device + w.gpuFile
		return nil
	}
	if _, err := m.c.Copy(dst, src); err != nil {
		return err
	}
	m.where.device += w.device
	m.where.gpuFile += w.gpuFile
	m.where.host += w.host
	return nil
}

func (m *Mover) bounced(dst, src []dma.Segment, n uint64) error {
	if m.bounce == nil {
		m.bounce = newBounce(bounceSize)
	}
	for off := uint64(0); off < n; off += bounceSize {
		k := min(n-off, bounceSize)
		host := dma.Cut(m.part[:0], m.bounce, 0, k)
		m.rest = dma.Cut(m.rest[:0], src, off, k)
		if _, err := m.c.Copy(host, m.rest); err != nil {
			return err
		}
		m.rest = dma.Cut(m.rest[:0], dst, off, k)
		if _, err := m.c.Copy(m.rest, host); err != nil {
			return err
		}
	}
	return nil
}

func newBounce(n uint32) []dma.Segment {
	return []dma.Segment{{Region: dma.NewBuffer(make([]byte, n), dma.Host), Len: n}}
}

// direct says whether this NIC reaches all GPU memory in segs without the host's help.
func (p *Port) direct(segs []dma.Segment) bool {
	mask := p.p2p.Load()
	for i := range segs {
		f := segs[i].Region.File()
		if f == nil {
			continue
		}
		if g := f.GPU(); g >= 0 && mask&(1<<uint(g)) == 0 {
			return false
		}
	}
	return true
}

// Whole writes bytes of a frame's payload that go to a header buffer: it has no headers that split.
func (m *Mover) Whole(dst, src []dma.Segment) error {
	_, err := m.c.Copy(dst, src)
	m.where.host += dma.Len(dst)
	return err
}
