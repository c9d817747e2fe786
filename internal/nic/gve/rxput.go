package gve

import (
	"fmt"

	"vnic.dev/vnic/dma"
	"vnic.dev/vnic/internal/nic"
	"vnic.dev/vnic/splitter"
)

// placement describes the buffers into which a frame is written.
type placement struct {
	n        uint32        // number of buffers
	inHeader uint32        // bytes of the frame in the first buffer's header buffer; 0: the frame is not split
	rest     uint32        // bytes of the frame in the packet buffers
	header   []dma.Segment // memory for Frame.Header
	payload  []dma.Segment // memory for Frame.Payload
	whole    []dma.Segment // scratch of locate
	buffers  []dma.Segment // scratch of locate
}

// Put implements nic.RxQueue (docs/specs/gve.md, 5). On a queue with header split, a frame that the Port wanted to
// split but that cannot be split (Frame.Unsplit, or a header buffer is too short) lies whole in the packet buffers,
// with the overflow mark.
func (q *rxQueue) Put(m *nic.Mover, f *nic.Frame) nic.Result {
	switch {
	case !q.on:
		return nic.PutDisabled
	case q.Err() != nil:
		return nic.PutStopped
	case len(f.Header) > maxOwn || f.Meta.GSOType != splitter.GSONone && !q.p.rsc:
		q.lost(f, &q.count.tooBig)
		return nic.PutTooBig
	}
	place := &q.frame
	place.inHeader = 0
	if f.Split && f.HeaderLen <= uint32(q.p.headerSize) {
		place.inHeader = f.HeaderLen
	}
	place.rest = f.Len() - place.inHeader
	size := uint32(q.p.bufSize)
	place.n = max(1, (place.rest+size-1)/size)
	if place.n > min(maxRxBufs, q.in.mask) {
		q.lost(f, &q.count.tooBig)
		return nic.PutTooBig
	}
	if have := q.avail(); have < place.n {
		q.short = have
		q.lost(f, &q.count.noBuffer)
		return nic.PutNoBuffer
	}
	if err := q.peek(place.n); err != nil {
		q.fail(fmt.Errorf("receive queue %d: buffers: %w", q.id, err))
		return nic.PutStopped
	}
	if bad, ok := q.locate(f); !ok {
		return q.refuse(bad)
	}
	c := rxCompl{overflow: f.Unsplit || f.Split && place.inHeader == 0 && q.p.headerSize > 0,
		ptype: ptypeOf(&f.Meta.Headers), hash: f.Hash}
	if q.clock != nil {
		if q.time == 0 {
			q.time = q.clock()
		}
		c.stamped, c.stamp = true, uint32(q.time)
	}
	err := q.write(m, f, &c)
	if err == nil {
		err = q.complete(&c)
	}
	switch {
	case err == nil:
		return nic.PutTaken
	case nic.SenderFault(err, q.space):
		return nic.PutFault
	}
	q.fail(fmt.Errorf("receive queue %d: %w", q.id, err))
	return nic.PutStopped
}

// lost adds 1 to c for a frame that the queue did not take, unless it is merged (Frame.Merged).
func (q *rxQueue) lost(f *nic.Frame, c *counter) {
	if !f.Merged {
		c.add(1)
	}
}

// peek reads the descriptors of the next n posted buffers to bufs.
func (q *rxQueue) peek(n uint32) error { return q.read(q.head, q.bufs[:n]) }

func (q *rxQueue) read(first uint32, bufs []rxBuf) (err error) {
	defer dma.Recover(&err)
	for i := range bufs {
		bufs[i].decode((*[rxBufLen]byte)(q.in.entryAt(first + uint32(i))))
	}
	return nil
}

// locate finds the memory for a frame: header and payload of q.frame. If ok is false, buffer number bad, from 0, cannot
// be used.
func (q *rxQueue) locate(f *nic.Frame) (bad uint32, ok bool) {
	place := &q.frame
	var err error
	place.buffers = place.buffers[:0]
	rest := place.rest
	for i := range place.n {
		k := min(rest, uint32(q.p.bufSize))
		rest -= k
		limit := len(place.buffers) + maxPieces
		place.buffers, err = q.space.TranslateMax(place.buffers, limit, q.bufs[i].addr, uint64(k), dma.Write)
		if err != nil {
			return i, false
		}
	}
	head := uint64(len(f.Header))
	if place.inHeader == 0 {
		place.header = dma.Cut(place.header[:0], place.buffers, 0, head)
		place.payload = dma.Cut(place.payload[:0], place.buffers, head, uint64(f.PayloadLen))
		return 0, true
	}
	place.whole, err = q.space.TranslateMax(place.whole[:0], maxPieces, q.bufs[0].header, uint64(place.inHeader),
		dma.Write)
	if err != nil {
		return 0, false
	}
	place.header = dma.Cut(place.header[:0], place.whole, 0, head)
	place.payload = place.payload[:0]
	if more := uint64(place.inHeader) - head; more > 0 { // the frame is not TCP, and lies whole in the header buffer
		place.payload = dma.Cut(place.payload, place.whole, head, more)
	}
	place.payload = append(place.payload, place.buffers...)
	return 0, true
}

// refuse drops the frame, and returns the buffers up to and with number bad to the driver, all marked as bad.
func (q *rxQueue) refuse(bad uint32) nic.Result {
	q.count.badBuffer.add(1)
	q.frame.n, q.frame.rest, q.frame.inHeader = bad+1, 0, 0
	if err := q.complete(&rxCompl{bad: true}); err != nil {
		q.fail(fmt.Errorf("receive queue %d: completions: %w", q.id, err))
		return nic.PutStopped
	}
	return nic.PutFault
}

// write copies the frame to the memory that locate found, and sets segLen and the checksum fields of c. Except for GSO
// packets, it completes partial checksums, and verifies unknown ones of TCP and UDP unless bytes follow the IP packet.
func (q *rxQueue) write(m *nic.Mover, f *nic.Frame, c *rxCompl) error {
	h, meta := &f.Meta.Headers, &f.Meta
	hdr := q.scratch[:copy(q.scratch[:], f.Header)]
	ports := (h.Class == splitter.TCP || h.Class == splitter.UDP) && !f.Trailed()
	csum := meta.Csum
	var sum uint16
	var err error
	switch {
	case meta.GSOType != splitter.GSONone: // the checksum of a GSO packet counts as good
		c.segLen = meta.GSOSize
		csum = splitter.CsumGood
		err = m.Payload(q.frame.payload, f.Payload)
	case csum == splitter.CsumPartial || csum == splitter.CsumNone && ports:
		if sum, err = m.PayloadSum(q.frame.payload, f.Payload); err != nil {
			return err
		}
		if csum == splitter.CsumPartial {
			splitter.FixL4(h, hdr, f.PayloadLen, sum)
			csum = splitter.CsumGood
		} else {
			csum = splitter.VerifyL4(h, hdr, f.PayloadLen, sum)
		}
	default:
		err = m.Payload(q.frame.payload, f.Payload)
	}
	if err != nil {
		return err
	}
	if ports && csum != splitter.CsumNone {
		c.checked, c.l4Bad = true, csum == splitter.CsumBad
		c.ipBad = !splitter.VerifyIPv4(h, hdr)
		if c.l4Bad || c.ipBad {
			q.count.badCsum.add(1)
		}
	}
	return m.Header(q.frame.header, hdr)
}

// complete writes the completions of a frame's buffers, without the words that publish stores later.
func (q *rxQueue) complete(c *rxCompl) (err error) {
	defer dma.Recover(&err)
	place := &q.frame
	rest, head := place.rest, q.head
	c.split, c.headerLen = place.inHeader > 0, uint16(place.inHeader)
	for i := range place.n {
		k := min(rest, uint32(q.p.bufSize))
		rest -= k
		c.id, c.length, c.eop = q.bufs[i].id, uint16(k), i == place.n-1
		q.words[head&q.out.mask] = c.encode(q.out.entryAt(head))
		head++
		c.split, c.headerLen, c.overflow = false, 0, false
	}
	q.head = head
	return nil
}
