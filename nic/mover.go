package nic

import (
	"errors"

	"vnic.dev/vnic/dma"
)

// Mover moves the bytes of frames into a receive queue's buffers, and knows afterwards where payload came to lie. There
// is one for each receive queue, used under its lock.
type Mover struct {
	c      *dma.Copier // the sender's, for the time of a Deliver
	port   *Port
	where  where
	step   []dma.Segment // scratch of a bounce
	rest   []dma.Segment // likewise
	bounce []dma.Segment // host memory of bounceSize, made when first needed
}

// bounceSize is the most that is bounced in one step.
const bounceSize = 64 << 10

// Header writes bytes that are not payload.
func (m *Mover) Header(dst []dma.Segment, b []byte) error {
	if n, err := m.c.Write(dst, b); err != nil || n != len(b) {
		return short(err, uint64(n), uint64(len(b)))
	}
	return nil
}

// Payload fills dst with the first bytes of src, which has at least as many. Where peer to peer is not possible between
// this NIC and the GPU that dst lies in, the bytes go to host memory and the GPU's copy engine takes them on from there.
func (m *Mover) Payload(dst, src []dma.Segment) error {
	var w where
	n := w.locate(dst)
	if n == 0 {
		return nil
	}
	if w.device+w.gpuFile > 0 && !m.port.direct(dst) {
		if err := m.bounced(dst, src, n); err != nil {
			return err
		}
		// The NIC wrote host memory: that is what counts. The engine's copy is counted as such.
		m.where.host += n
		m.where.bounced += w.device + w.gpuFile
		return nil
	}
	if k, err := m.c.Copy(dst, src); err != nil || k != n {
		return short(err, k, n)
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
		m.step = dma.Cut(m.step[:0], m.bounce, 0, k)
		m.rest = dma.Cut(m.rest[:0], src, off, k)
		if got, err := m.c.Copy(m.step, m.rest); err != nil || got != k {
			return short(err, got, k)
		}
		m.rest = dma.Cut(m.rest[:0], dst, off, k)
		if got, err := m.c.Copy(m.rest, m.step); err != nil || got != k {
			return short(err, got, k)
		}
	}
	return nil
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

// SenderFault says whether an error of a Mover is that of the frame's sender, and not of the receiver that owns space: the
// memory that it sends from is gone.
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
