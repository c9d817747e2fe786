package gve

import (
	"fmt"
	"math/bits"
)

// CONFIGURE_DEVICE_RESOURCES, the creation and the end of queues.

// Words of BAR2 that are doorbells: little endian, 32 bits, written by the driver. The indices that
// it is told count words.
const (
	irqDoorbells = 0x000 // one for each notification block
	txDoorbells  = 0x400 // one for each transmit queue
	rxDoorbells  = 0x800 // one for each receive queue
)

const (
	formatDQORDA = 3          // GVE_DQO_RDA_FORMAT
	rawAddresses = 0xffffffff // GVE_RAW_ADDRESSING_QPL_ID: no page list
	resourcesLen = 64         // struct gve_queue_resources
	minStride    = 4
	maxStride    = 4096
)

// resources are what the driver has set up. The control goroutine owns them.
type resources struct {
	blocks int // notification blocks; 0: not configured
	base   int // MSI-X vector of the first one
	rx, tx []queueState
}

type queueState struct {
	live bool // created and not destroyed, even if it has stopped for an error
	rsc  bool
	buf  int
}

// configureCommand is CONFIGURE_DEVICE_RESOURCES (struct gve_adminq_configure_device_resources).
type configureCommand struct {
	irqs   uint64 // offset 8: where the doorbells' indices go
	count  uint32 // 20: of notification blocks
	stride uint32 // 24: bytes from one index to the next
	base   uint32 // 28: MSI-X vector of the first block: 0, or 1 if the management vector is 0
	format uint8  // 32
}

func (c *configureCommand) decode(b *body) {
	*c = configureCommand{irqs: be.Uint64(b[8:]), count: be.Uint32(b[20:]), stride: be.Uint32(b[24:]),
		base: be.Uint32(b[28:]), format: b[32]}
}

func (c *configureCommand) encode(b *body) {
	*b = body{}
	be.PutUint64(b[8:], c.irqs)
	be.PutUint32(b[20:], c.count)
	be.PutUint32(b[24:], c.stride)
	be.PutUint32(b[28:], c.base)
	b[32] = c.format
}

func (d *Device) configure(b *body) error {
	var c configureCommand
	c.decode(b)
	switch {
	case d.res.blocks > 0:
		return fmt.Errorf("resources are configured: %w", statusAlreadyExists)
	case c.format != formatDQORDA:
		return fmt.Errorf("queue format %d: only DQO-RDA (%d) is offered: %w", c.format, formatDQORDA, statusUnimplemented)
	case c.count == 0 || c.count > uint32(2*len(d.rx)):
		return invalid("%d notification blocks, not 1 to %d", c.count, 2*len(d.rx))
	case c.stride < minStride || c.stride > maxStride:
		return invalid("stride of %d bytes, not %d to %d", c.stride, minStride, maxStride)
	case c.base > 1:
		return invalid("notification blocks from vector %d on, not 0 or 1", c.base)
	}
	for i := range c.count {
		if err := d.writeIndex(c.irqs+uint64(i)*uint64(c.stride), irqDoorbells+i); err != nil {
			return err
		}
	}
	d.res.blocks, d.res.base = int(c.count), int(c.base)
	management := d.res.blocks // the last one
	if c.base == 1 {
		management = 0
	}
	d.management.Store(int32(management))
	d.vectors.manage(management)
	return nil
}

// writeIndex tells the driver the index of a doorbell.
func (d *Device) writeIndex(addr uint64, index uint32) error {
	var w [4]byte
	be.PutUint32(w[:], index)
	return d.mem.write(addr, w[:])
}

// deconfigure carries out DECONFIGURE_DEVICE_RESOURCES. Queues that are still there end.
func (d *Device) deconfigure() error {
	if d.res.blocks == 0 {
		return fmt.Errorf("no resources are configured: %w", statusFailedPrecondition)
	}
	d.release()
	return nil
}

// release ends all queues and forgets resources. When it returns nothing does DMA for the driver.
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

// txCommand is CREATE_TX_QUEUE (struct gve_adminq_create_tx_queue).
type txCommand struct {
	id        uint32 // offset 0
	resources uint64 // 8: where the doorbell's index goes
	ring      uint64 // 16
	pages     uint32 // 24: queue page list
	block     uint32 // 28
	compl     uint64 // 32
	size      uint16 // 40
	complSize uint16 // 42
}

func (c *txCommand) decode(b *body) {
	*c = txCommand{id: be.Uint32(b[0:]), resources: be.Uint64(b[8:]), ring: be.Uint64(b[16:]), pages: be.Uint32(b[24:]),
		block: be.Uint32(b[28:]), compl: be.Uint64(b[32:]), size: be.Uint16(b[40:]), complSize: be.Uint16(b[42:])}
}

func (c *txCommand) encode(b *body) {
	*b = body{}
	be.PutUint32(b[0:], c.id)
	be.PutUint64(b[8:], c.resources)
	be.PutUint64(b[16:], c.ring)
	be.PutUint32(b[24:], c.pages)
	be.PutUint32(b[28:], c.block)
	be.PutUint64(b[32:], c.compl)
	be.PutUint16(b[40:], c.size)
	be.PutUint16(b[42:], c.complSize)
}

// checkQueue refuses what is wrong with any queue.
func (d *Device) checkQueue(qs []queueState, id, pages, block uint32, size, complSize, most int) error {
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
	case size < minRing || size > most || bits.OnesCount(uint(size)) != 1:
		return invalid("ring of %d, not a power of two from %d to %d", size, minRing, most)
	case complSize != size:
		return invalid("completion ring of %d for a ring of %d", complSize, size)
	}
	return nil
}

func (d *Device) createTx(b *body) error {
	var c txCommand
	c.decode(b)
	if err := d.checkQueue(d.res.tx, c.id, c.pages, c.block, int(c.size), int(c.complSize), d.conf.MaxTxRing); err != nil {
		return err
	}
	if err := d.offerDoorbell(c.resources, txDoorbells+c.id); err != nil {
		return err
	}
	p := txParams{id: int(c.id), desc: c.ring, compl: c.compl, size: int(c.size), complSize: int(c.complSize),
		notify: d.res.base + int(c.block)}
	if err := d.tx[c.id].start(p); err != nil {
		return err
	}
	d.res.tx[c.id] = queueState{live: true}
	return nil
}

// offerDoorbell writes a queue's resources.
func (d *Device) offerDoorbell(addr uint64, index uint32) error {
	if err := d.mem.has(addr, resourcesLen); err != nil {
		return err
	}
	return d.writeIndex(addr, index)
}

// rxCommand is CREATE_RX_QUEUE (struct gve_adminq_create_rx_queue).
type rxCommand struct {
	id        uint32 // offset 0
	block     uint32 // 12
	resources uint64 // 16: where the doorbell's index goes
	compl     uint64 // 24
	ring      uint64 // 32: of buffers
	pages     uint32 // 40: queue page list
	complSize uint16 // 44
	buf       uint16 // 46: bytes of a packet buffer
	size      uint16 // 48
	rsc       uint8  // 50: packets of a flow may be coalesced
	header    uint16 // 52: bytes of a header buffer; 0: packets are not split
}

func (c *rxCommand) decode(b *body) {
	*c = rxCommand{id: be.Uint32(b[0:]), block: be.Uint32(b[12:]), resources: be.Uint64(b[16:]), compl: be.Uint64(b[24:]),
		ring: be.Uint64(b[32:]), pages: be.Uint32(b[40:]), complSize: be.Uint16(b[44:]), buf: be.Uint16(b[46:]),
		size: be.Uint16(b[48:]), rsc: b[50], header: be.Uint16(b[52:])}
}

func (c *rxCommand) encode(b *body) {
	*b = body{}
	be.PutUint32(b[0:], c.id)
	be.PutUint32(b[12:], c.block)
	be.PutUint64(b[16:], c.resources)
	be.PutUint64(b[24:], c.compl)
	be.PutUint64(b[32:], c.ring)
	be.PutUint32(b[40:], c.pages)
	be.PutUint16(b[44:], c.complSize)
	be.PutUint16(b[46:], c.buf)
	be.PutUint16(b[48:], c.size)
	b[50] = c.rsc
	be.PutUint16(b[52:], c.header)
}

func (d *Device) createRx(b *body) error {
	var c rxCommand
	c.decode(b)
	if err := d.checkQueue(d.res.rx, c.id, c.pages, c.block, int(c.size), int(c.complSize), d.conf.MaxRxRing); err != nil {
		return err
	}
	switch {
	case c.buf < minPacketBuffer || c.buf > packetBuffer:
		return invalid("packet buffers of %d bytes, not %d to %d", c.buf, minPacketBuffer, packetBuffer)
	case c.header != 0 && (c.header < headerLimit || c.header > rxMaxHdr):
		return invalid("header buffers of %d bytes, neither 0 nor %d to %d", c.header, headerLimit, rxMaxHdr)
	}
	if err := d.offerDoorbell(c.resources, rxDoorbells+c.id); err != nil {
		return err
	}
	d.port.SplitQueue(int(c.id), c.header != 0)
	p := rxParams{id: int(c.id), desc: c.ring, compl: c.compl, size: int(c.size), complSize: int(c.complSize),
		bufSize:    int(c.buf),
		headerSize: int(c.header), rsc: c.rsc != 0, notify: d.res.base + int(c.block)}
	if err := d.rx[c.id].start(p); err != nil {
		return err
	}
	d.res.rx[c.id] = queueState{live: true, rsc: p.rsc, buf: p.bufSize}
	d.setLimits()
	d.stats.live(int(c.id), true)
	d.spread()
	return nil
}

func (d *Device) destroyTx(id uint32) error {
	if id >= uint32(len(d.tx)) || !d.res.tx[id].live {
		return fmt.Errorf("transmit queue %d: %w", id, statusNotFound)
	}
	d.endTx(int(id))
	return nil
}

func (d *Device) destroyRx(id uint32) error {
	if id >= uint32(len(d.rx)) || !d.res.rx[id].live {
		return fmt.Errorf("receive queue %d: %w", id, statusNotFound)
	}
	d.endRx(int(id))
	return nil
}

// endTx stops a transmit queue: when it returns nothing of it touches memory.
func (d *Device) endTx(id int) {
	d.tx[id].stop()
	d.res.tx[id] = queueState{}
}

// endRx stops a receive queue likewise. What comes for it is dropped until it is there again.
func (d *Device) endRx(id int) {
	d.rx[id].stop()
	if !d.res.rx[id].live {
		return
	}
	d.res.rx[id] = queueState{}
	d.setLimits()
	d.stats.live(id, false)
	d.spread()
}
