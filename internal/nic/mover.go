package nic

import (
	"errors"

	"vnic.dev/vnic/dma"
	"vnic.dev/vnic/splitter"
)

// Mover moves the bytes of frames into a receive queue's buffers, and knows afterwards where
// payload came to lie. There is one for each receive queue, used under its lock.
type Mover struct {
	c      *dma.Copier // the sender's, for the time of a Deliver
	port   *Port
	at     []dma.Segment // where the payload of this frame went to, behind skip bytes of something else
	skip   uint64
	nodes  bool // NUMA nodes are noted; for the time of a Deliver
	byMem  bytesByMem
	parts  bytesByMem    // scratch of payload
	shown  []dma.Segment // scratch of placed
	step   []dma.Segment // scratch of a bounce
	rest   []dma.Segment // likewise
	head   []dma.Segment // scratch of Whole
	tail   []dma.Segment // likewise
	bounce []dma.Segment // host memory of bounceSize, made when first needed
}

// bounceSize is the most that is bounced in one step.
const bounceSize = 64 << 10

// begin forgets the frame before.
func (m *Mover) begin() {
	m.byMem.reset(m.nodes)
	m.at = nil
}

// Header writes bytes that are not payload.
func (m *Mover) Header(dst []dma.Segment, b []byte) error {
	m.byMem.buffers += uint32(len(dst))
	if n, err := m.c.Write(dst, b); err != nil || n != len(b) {
		return short(err, uint64(n), uint64(len(b)))
	}
	return nil
}

// Whole fills dst, which is as long as both, with b, which is not payload, and src, which is.
func (m *Mover) Whole(dst []dma.Segment, b []byte, src []dma.Segment) error {
	n := dma.Len(dst)
	for i := range dst {
		if dst[i].GPU() >= 0 { // seldom: each part has its own rules then
			m.head = dma.Cut(dma.Reuse(m.head), dst, 0, uint64(len(b)))
			m.tail = dma.Cut(dma.Reuse(m.tail), dst, uint64(len(b)), n)
			if err := m.Header(m.head, b); err != nil {
				return err
			}
			return m.Payload(m.tail, src)
		}
	}
	m.at, m.skip = dst, uint64(len(b))
	k, err := m.c.CopyBehind(dst, b, src)
	m.byMem.host += n - uint64(len(b))
	if m.nodes {
		m.behind(dst, uint64(len(b)))
	}
	m.byMem.buffers += uint32(len(dst))
	return short(err, k, n)
}

// behind notes of which nodes the host memory in segs is, behind skip bytes.
func (m *Mover) behind(segs []dma.Segment, skip uint64) {
	for i := range segs {
		n := uint64(segs[i].Len)
		if cut := min(skip, n); cut < n {
			m.byMem.nodeBytes(segs[i].Node(), n-cut)
		}
		skip -= min(skip, n)
	}
}

// Payload fills dst with the first bytes of src, which has at least as many. Where peer to peer is
// not possible between this NIC and the GPU that dst lies in, the bytes go to host memory and the
// GPU's copy engine takes them on from there.
func (m *Mover) Payload(dst, src []dma.Segment) error {
	_, err := m.payload(dst, src, false)
	return err
}

// PayloadSum is Payload, and returns the ones' complement sum of what it moved (RFC 1071), as if it
// began at an even place.
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
	m.at, m.skip = dst, 0
	m.byMem.placed(w)
	m.byMem.buffers += uint32(len(dst))
	if w.device+w.gpuFile > 0 && !m.port.direct(dst) {
		if sum, err = m.bounced(dst, src, n, summed); err != nil {
			return 0, err
		}
		// The NIC wrote host memory: that is what counts. The engine's copy is counted as such.
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

// placed is where bytes [off, off+n) of the payload of the frame just moved lie, until the next call or frame.
func (m *Mover) placed(off, n uint32) []dma.Segment {
	m.shown = dma.Cut(dma.Reuse(m.shown), m.at, m.skip+uint64(off), uint64(n))
	return m.shown
}

// part is what bytes [off, off+n) of the payload of the frame just moved are of byMem.
func (m *Mover) part(off, n uint32) (w bytesByMem) {
	w.locate(m.placed(off, n))
	if m.byMem.bounced > 0 {
		w = bytesByMem{host: uint64(n), bounced: w.device + w.gpuFile}
	}
	return w
}

// copy copies n bytes.
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

// errShortFrame says that a frame has fewer bytes than its sender said.
var errShortFrame = errors.New("frame shorter than described")

// short is the error of a copy that ended early.
func short(err error, got, want uint64) error {
	if err == nil && got < want {
		err = errShortFrame
	}
	return err
}

// SenderFault says whether an error of a Mover is that of the frame's sender, and not of the
// receiver that owns space: the memory that it sends from is gone.
func SenderFault(err error, space *dma.Space) bool {
	var fault *dma.FaultError
	return errors.As(err, &fault) && !space.Has(fault.File) || errors.Is(err, errShortFrame)
}

func newBounce(n uint32) []dma.Segment {
	return []dma.Segment{{Region: dma.NewBuffer(make([]byte, n), dma.Host), Len: n}}
}

// direct says whether this NIC reaches all GPU memory in segs without the host's help.
func (p *Port) direct(segs []dma.Segment) bool {
	mask := p.p2p.Load()
	for i := range segs {
		if g := segs[i].GPU(); g >= 0 && mask&(1<<uint(g)) == 0 {
			return false
		}
	}
	return true
}
