package gve

import (
	"fmt"
	"math/bits"
)

// Doorbells are words of BAR2: little endian, 32 bits. The device reports a doorbell's index to the driver in
// words. These are the indices of the first doorbells:
const (
	irqDoorbells = 0x000 // of notification blocks
	txDoorbells  = 0x400 // of transmit queues
	rxDoorbells  = 0x800 // of receive queues
)

const (
	formatDQORDA = 3          // GVE_DQO_RDA_FORMAT
	rawAddresses = 0xffffffff // GVE_RAW_ADDRESSING_QPL_ID: no page list
	resourcesLen = 64         // length of struct gve_queue_resources
	minStride    = 4
	maxStride    = 4096
)

// resources are the notification blocks and queues that the driver has set up. The control goroutine owns them.
type resources struct {
	blocks int // notification blocks; 0: not configured
	base   int // MSI-X vector of the first block
	rx, tx []queueState
}

type queueState struct {
	live bool // created and not destroyed; it may have stopped on an error
	rsc  bool
	buf  int
}

type configureCommand struct {
	_      [8]byte // event counters, which DQO does not use
	IRQs   uint64  // offset 8: address for doorbell indices
	_      [4]byte
	Count  uint32 // 20: of notification blocks
	Stride uint32 // 24: bytes from one index to the next
	Base   uint32 // 28: MSI-X vector of the first block: 0, or 1 if the management vector is 0
	Format uint8  // 32
}

func (d *Device) configure(b *body) error {
	c := decode[configureCommand](b[:])
	switch {
	case d.res.blocks > 0:
		return fmt.Errorf("resources are configured: %w", statusAlreadyExists)
	case c.Format != formatDQORDA:
		return fmt.Errorf("queue format %d: only DQO-RDA (%d) is offered: %w", c.Format, formatDQORDA, statusUnimplemented)
	case c.Count == 0 || c.Count > uint32(2*len(d.rx)):
		return invalid("%d notification blocks, not 1 to %d", c.Count, 2*len(d.rx))
	case c.Stride < minStride || c.Stride > maxStride:
		return invalid("stride of %d bytes, not %d to %d", c.Stride, minStride, maxStride)
	case c.Base > 1:
		return invalid("notification blocks from vector %d on, not 0 or 1", c.Base)
	}
	for i := range c.Count {
		if err := d.writeIndex(c.IRQs+uint64(i)*uint64(c.Stride), irqDoorbells+i); err != nil {
			return err
		}
	}
	d.res.blocks, d.res.base = int(c.Count), int(c.Base)
	management := d.res.blocks // the vector behind the blocks' vectors
	if c.Base == 1 {
		management = 0
	}
	d.management.Store(int32(management))
	d.vectors.setManagement(management)
	return nil
}

func (d *Device) writeIndex(addr uint64, index uint32) error {
	var w [4]byte
	be.PutUint32(w[:], index)
	return d.mem.write(addr, w[:])
}

func (d *Device) deconfigure() error {
	if d.res.blocks == 0 {
		return fmt.Errorf("no resources are configured: %w", statusFailedPrecondition)
	}
	d.release()
	return nil
}

// release ends all queues and the stats report, resets the vectors, and forgets the notification blocks.
func (d *Device) release() {
	for i := range d.tx {
		d.endTx(i)
	}
	for i := range d.rx {
		d.endRx(i)
	}
	d.stats.detach()
	d.management.Store(-1)
	d.vectors.reset()
	d.res.blocks, d.res.base = 0, 0
}

type txCommand struct {
	ID        uint32 // offset 0
	_         [4]byte
	Resources uint64 // 8: address for the doorbell's index
	Ring      uint64 // 16
	Pages     uint32 // 24: id of a queue page list
	Block     uint32 // 28
	Compl     uint64 // 32
	Size      uint16 // 40
	ComplSize uint16 // 42
}

// checkQueue checks the parameters that both kinds of queues have, and that the queue may be created now. most is the
// length of the longest ring.
func (d *Device) checkQueue(qs []queueState, id, pages, block uint32, p *ringParams, most int) error {
	switch {
	case d.res.blocks == 0:
		return fmt.Errorf("no resources are configured: %w", statusFailedPrecondition)
	case id >= uint32(len(qs)):
		return invalid("queue %d of %d", id, len(qs))
	case qs[id].live:
		return fmt.Errorf("queue %d is there: %w", id, statusAlreadyExists)
	case pages != rawAddresses:
		return fmt.Errorf("queue page list %#x: only direct addressing is offered: %w", pages, statusUnimplemented)
	case block >= uint32(d.res.blocks):
		return invalid("notification block %d of %d", block, d.res.blocks)
	case p.size < minRing || p.size > most || bits.OnesCount(uint(p.size)) != 1:
		return invalid("ring of %d, not a power of two from %d to %d", p.size, minRing, most)
	case p.complSize != p.size:
		return invalid("completion ring of %d for a ring of %d", p.complSize, p.size)
	}
	return nil
}

func (d *Device) createTx(b *body) error {
	c := decode[txCommand](b[:])
	p := ringParams{desc: c.Ring, compl: c.Compl, size: int(c.Size), complSize: int(c.ComplSize),
		notify: d.res.base + int(c.Block)}
	if err := d.checkQueue(d.res.tx, c.ID, c.Pages, c.Block, &p, d.conf.MaxTxRing); err != nil {
		return err
	}
	if err := d.offerDoorbell(c.Resources, txDoorbells+c.ID); err != nil {
		return err
	}
	if err := d.tx[c.ID].start(p); err != nil {
		return err
	}
	d.res.tx[c.ID].live = true
	return nil
}

// offerDoorbell writes a doorbell's index to the driver's struct gve_queue_resources at addr, if the device can write
// to all of it.
func (d *Device) offerDoorbell(addr uint64, index uint32) error {
	if err := d.mem.has(addr, resourcesLen); err != nil {
		return err
	}
	return d.writeIndex(addr, index)
}

type rxCommand struct {
	ID        uint32 // offset 0
	_         [8]byte
	Block     uint32 // 12
	Resources uint64 // 16: address for the doorbell's index
	Compl     uint64 // 24
	Ring      uint64 // 32: of buffers
	Pages     uint32 // 40: id of a queue page list
	ComplSize uint16 // 44
	Buf       uint16 // 46: bytes of a packet buffer
	Size      uint16 // 48
	RSC       uint8  // 50: not 0: the driver accepts GSO packets on this queue
	_         [1]byte
	Header    uint16 // 52: bytes of a header buffer; 0: no header split
}

func (d *Device) createRx(b *body) error {
	c := decode[rxCommand](b[:])
	p := rxParams{ringParams: ringParams{desc: c.Ring, compl: c.Compl, size: int(c.Size), complSize: int(c.ComplSize),
		notify: d.res.base + int(c.Block)}, bufSize: int(c.Buf), headerSize: int(c.Header), rsc: c.RSC != 0}
	if err := d.checkQueue(d.res.rx, c.ID, c.Pages, c.Block, &p.ringParams, d.conf.MaxRxRing); err != nil {
		return err
	}
	switch {
	case c.Buf < minPacketBuffer || c.Buf > packetBuffer:
		return invalid("packet buffers of %d bytes, not %d to %d", c.Buf, minPacketBuffer, packetBuffer)
	case c.Header != 0 && (c.Header < headerLimit || c.Header > rxMaxHdr):
		return invalid("header buffers of %d bytes, neither 0 nor %d to %d", c.Header, headerLimit, rxMaxHdr)
	}
	if err := d.offerDoorbell(c.Resources, rxDoorbells+c.ID); err != nil {
		return err
	}
	d.port.SplitQueue(int(c.ID), c.Header != 0)
	if err := d.rx[c.ID].start(p); err != nil {
		return err
	}
	d.res.rx[c.ID] = queueState{live: true, rsc: p.rsc, buf: p.bufSize}
	d.rxChanged(int(c.ID))
	return nil
}

func (d *Device) destroyTx(b *body) error { return d.destroy("transmit", d.res.tx, b, d.endTx) }
func (d *Device) destroyRx(b *body) error { return d.destroy("receive", d.res.rx, b, d.endRx) }

func (d *Device) destroy(what string, qs []queueState, b *body, end func(id int)) error {
	id := be.Uint32(b[:])
	if id >= uint32(len(qs)) || !qs[id].live {
		return fmt.Errorf("%s queue %d: %w", what, id, statusNotFound)
	}
	end(int(id))
	return nil
}

// rxChanged updates the port's limits, the stats report and the default RSS after receive queue id was created or
// ended.
func (d *Device) rxChanged(id int) {
	d.setLimits()
	d.stats.live(id, d.res.rx[id].live)
	d.setDefaultRSS()
}

func (d *Device) endTx(id int) {
	d.tx[id].stop()
	d.res.tx[id] = queueState{}
}

// endRx stops a receive queue. The port drops frames for it until the driver creates it again.
func (d *Device) endRx(id int) {
	d.port.FlushRx(id)
	d.rx[id].stop()
	d.port.FlushRx(id) // now drops frames that are still held, unless Port.Exhaust is in effect
	if !d.res.rx[id].live {
		return
	}
	d.res.rx[id] = queueState{}
	d.rxChanged(id)
}
