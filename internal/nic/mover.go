package nic

import (
	"errors"

	"vnic.dev/vnic/dma"
	"vnic.dev/vnic/splitter"
)

// Mover copies the bytes of frames into a receive queue's buffers, and records where the payload of the last frame
// lies. Its user holds the queue's lock.
type Mover struct {
	c         *dma.Copier
	port      *Port
	payloadAt []dma.Segment
	skip      uint64
	nodes     bool // count host memory by NUMA node
	byMem     bytesByMem
	parts     bytesByMem    // scratch
	shown     []dma.Segment // scratch
	step      []dma.Segment // scratch
	rest      []dma.Segment // scratch
	head      []dma.Segment // scratch
	tail      []dma.Segment // scratch
	bounce    []dma.Segment // bounceSize bytes, made when first needed
}

const bounceSize = 64 << 10

func (m *Mover) begin() {
	m.byMem.reset(m.nodes)
	m.payloadAt = nil
}

// Header writes b, bytes that are not payload, to dst, and returns an error if dst is shorter.
func (m *Mover) Header(dst []dma.Segment, b []byte) error {
	m.byMem.buffers += uint32(len(dst))
	if n, err := m.c.Write(dst, b); err != nil || n != len(b) {
		return short(err, uint64(n), uint64(len(b)))
	}
	return nil
}

// Whole fills dst with b, which is not payload, and behind it src, which is. dst has the length of both.
func (m *Mover) Whole(dst []dma.Segment, b []byte, src []dma.Segment) error {
	n := dma.Len(dst)
	for i := range dst {
		if dst[i].GPU() >= 0 { // of what goes to GPU memory, only payload may have to be bounced
			m.head = dma.Cut(dma.Reuse(m.head), dst, 0, uint64(len(b)))
			m.tail = dma.Cut(dma.Reuse(m.tail), dst, uint64(len(b)), n)
			if err := m.Header(m.head, b); err != nil {
				return err
			}
			return m.Payload(m.tail, src)
		}
	}
	m.payloadAt, m.skip = dst, uint64(len(b))
	k, err := m.c.CopyBehind(dst, b, src)
	m.byMem.host += n - uint64(len(b))
	if m.nodes {
		m.behind(dst, uint64(len(b)))
	}
	m.byMem.buffers += uint32(len(dst))
	return short(err, k, n)
}

func (m *Mover) behind(segs []dma.Segment, skip uint64) {
	for i := range segs {
		n := uint64(segs[i].Len)
		if cut := min(skip, n); cut < n {
			m.byMem.nodeBytes(segs[i].Node(), n-cut)
		}
		skip -= min(skip, n)
	}
}

// Payload fills dst with the first bytes of src. They go through host memory if a part of dst is GPU memory that the
// NIC cannot reach peer to peer.
func (m *Mover) Payload(dst, src []dma.Segment) error {
	_, err := m.payload(dst, src, false)
	return err
}

// PayloadSum is Payload, and returns the ones' complement sum of the bytes that it moved (RFC 1071).
func (m *Mover) PayloadSum(dst, src []dma.Segment) (sum uint16, err error) {
	return m.payload(dst, src, true)
}

func (m *Mover) payload(dst, src []dma.Segment, summed bool) (sum uint16, err error) {
	w := &m.parts
	w.reset(m.nodes)
	n := w.locate(dst)
	if n == 0 {
		return 0, nil
	}
	m.payloadAt, m.skip = dst, 0
	m.byMem.placed(w)
	m.byMem.buffers += uint32(len(dst))
	if w.device+w.gpuFile > 0 && !m.port.direct(dst) {
		if sum, err = m.bounced(dst, src, n, summed); err != nil {
			return 0, err
		}
		// All bytes count as host memory, and those for GPU memory also as bounced.
		m.byMem.host += n
		m.byMem.bounced += w.device + w.gpuFile
		return sum, nil
	}
	if sum, err = m.copy(dst, src, n, summed); err != nil {
		return 0, err
	}
	m.byMem.device += w.device
	m.byMem.gpuFile += w.gpuFile
	m.byMem.host += w.host
	m.byMem.nodesOf(w)
	return sum, nil
}

// placed returns the memory where bytes [off, off+n) of the payload just moved lie. The result is
// valid until the next call of placed or part, or the next frame.
func (m *Mover) placed(off, n uint32) []dma.Segment {
	m.shown = dma.Cut(dma.Reuse(m.shown), m.payloadAt, m.skip+uint64(off), uint64(n))
	return m.shown
}

// part counts bytes [off, off+n) of the payload just moved by kind of memory, as byMem counts all of them.
func (m *Mover) part(off, n uint32) (w bytesByMem) {
	w.locate(m.placed(off, n))
	if m.byMem.bounced > 0 {
		w = bytesByMem{host: uint64(n), bounced: w.device + w.gpuFile}
	}
	return w
}

func (m *Mover) copy(dst, src []dma.Segment, n uint64, summed bool) (sum uint16, err error) {
	var k uint64
	if summed {
		k, sum, err = m.c.CopySum(dst, src)
	} else {
		k, err = m.c.Copy(dst, src)
	}
	return sum, short(err, k, n)
}

func (m *Mover) bounced(dst, src []dma.Segment, n uint64, summed bool) (sum uint16, err error) {
	if m.bounce == nil {
		m.bounce = newBounce(bounceSize)
	}
	for off := uint64(0); off < n; off += bounceSize {
		k := min(n-off, bounceSize)
		m.step = dma.Cut(dma.Reuse(m.step), m.bounce, 0, k)
		m.rest = dma.Cut(dma.Reuse(m.rest), src, off, k)
		part, err := m.copy(m.step, m.rest, k, summed)
		if err != nil {
			return 0, err
		}
		sum = splitter.Add(sum, part) // off is even
		m.rest = dma.Cut(dma.Reuse(m.rest), dst, off, k)
		if _, err := m.copy(m.rest, m.step, k, false); err != nil {
			return 0, err
		}
	}
	return sum, nil
}

var errShortFrame = errors.New("frame shorter than described")

func short(err error, got, want uint64) error {
	if err == nil && got < want {
		err = errShortFrame
	}
	return err
}

// SenderFault reports whether an error of a Mover is due to the frame's sender: a fault in a file that is not in space,
// the receiver's address space, or fewer bytes than described.
func SenderFault(err error, space *dma.Space) bool {
	var fault *dma.FaultError
	return errors.As(err, &fault) && !space.Has(fault.File) || errors.Is(err, errShortFrame)
}

func newBounce(n uint32) []dma.Segment {
	return []dma.Segment{{Region: dma.NewBuffer(make([]byte, n), dma.Host), Len: n}}
}

// direct reports whether this NIC reaches all GPU memory in segs peer to peer.
func (p *Port) direct(segs []dma.Segment) bool {
	mask := p.p2p.Load()
	for i := range segs {
		if g := segs[i].GPU(); g >= 0 && mask&(1<<uint(g)) == 0 {
			return false
		}
	}
	return true
}
