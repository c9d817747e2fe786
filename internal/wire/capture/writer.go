package capture

import (
	"fmt"
	"runtime"
	"time"

	"vnic.dev/vnic/internal/wire"
)

// writer is the state of the writing goroutine.
type writer struct {
	c       *Capture
	sink    *sink
	ifaces  int // interfaces described so far; 0: nothing is written yet
	block   block
	text    text
	unflush bool
}

func (c *Capture) run() {
	defer close(c.done)
	w := &writer{c: c, sink: newSink(c.out)}
	for {
		w.try(w.sync)
		for r := c.ring.next(); r != nil; r = c.ring.next() {
			w.take(r)
			c.ring.free()
			c.moved.Add(1)
		}
		if w.unflush {
			w.try(w.flush) // for a reader of the growing file
			continue
		}
		if c.ending.Load() && c.ring.empty() {
			break
		}
		c.asleep.Store(true)
		if c.ring.next() != nil {
			c.asleep.Store(false)
			continue
		}
		<-c.kick
	}
	w.try(w.finish)
	w.settle()
	w.sink.lose()
}

func (w *writer) try(f func() error) {
	if w.c.broken.Load() {
		w.unflush = false
		return
	}
	if err := f(); err != nil {
		w.c.fail(err)
	}
}

func (w *writer) sync() error {
	all := w.c.interfaces()
	for _, i := range all[w.ifaces:] {
		if err := w.add(i); err != nil {
			return err
		}
	}
	return nil
}

// add writes the description of an interface; before the first one it writes the section header.
func (w *writer) add(i *iface) error {
	first := w.ifaces == 0
	w.ifaces++
	w.unflush = true
	if first {
		if err := w.section(); err != nil {
			return err
		}
	}
	b := &w.block
	b.begin(interfaceDescription)
	b.uint16(linkTypeEthernet)
	b.uint16(0) // reserved
	b.uint32(uint32(recordSize(w.c.payload)))
	b.text(ifName, i.name)
	b.text(ifDescription, i.about)
	b.text(ifOS, runtime.GOOS)
	b.option(ifTSResol, 1)
	*b = append(*b, nanoseconds)
	b.pad(1)
	b.end(0)
	return w.write(*b)
}

func (w *writer) section() error {
	b := &w.block
	b.begin(sectionHeader)
	b.uint32(byteOrderMagic)
	b.uint16(versionMajor)
	b.uint16(versionMinor)
	b.uint64(lengthUnknown)
	b.text(shbUserAppl, "vnic")
	b.text(optComment, w.c.comment)
	b.text(shbHardware, runtime.GOARCH)
	b.text(shbOS, runtime.GOOS)
	b.end(0)
	return w.write(*b)
}

// write writes to the file's buffer, which keeps its first error.
func (w *writer) write(b []byte) error {
	_, err := w.sink.buf.Write(b)
	return err
}

// take writes a record that has an interface, or counts it as missed.
func (w *writer) take(r *record) {
	if r.iface == nil {
		return
	}
	if r.iface.id >= w.ifaces {
		w.try(w.sync)
	}
	if w.c.broken.Load() {
		r.iface.missed.Add(1)
		return
	}
	w.unflush = true
	if err := w.packet(r); err != nil {
		r.iface.missed.Add(1)
		w.c.fail(err)
		return
	}
	w.sink.put(r.iface)
	w.settle()
}

// packet writes a frame. It does not copy the frame's bytes to w.block.
func (w *writer) packet(r *record) error {
	data := r.data[:r.n]
	if r.iface.id >= w.ifaces || uint64(len(data)) > uint64(r.length) {
		return fmt.Errorf("a frame of interface %d of %d, %d of its %d bytes: this is a bug of vnic", r.iface.id, w.ifaces,
			len(data), r.length)
	}
	r.comment(&w.text)
	b := &w.block
	b.begin(enhancedPacket)
	b.uint32(uint32(r.iface.id))
	b.timestamp(r.when)
	b.uint32(uint32(len(data)))
	b.uint32(r.length)
	b.pad(len(data)) // padding of the data, which is written before it
	b.optionText(optComment, w.text)
	b.optionUint32(epbFlags, flags(r))
	if missed := r.iface.missed.Load(); missed != r.iface.reported {
		b.optionUint64(epbDropCount, missed-r.iface.reported)
		r.iface.reported = missed
	}
	if r.queue >= 0 {
		b.optionUint32(epbQueue, uint32(r.queue))
	}
	b.end(len(data))
	if err := w.write((*b)[:packetHead]); err != nil {
		return err
	}
	if err := w.write(data); err != nil {
		return err
	}
	return w.write((*b)[packetHead:])
}

func flags(r *record) uint32 {
	direction, reception := uint32(flagOutbound), uint32(flagUnicast)
	if r.iface.rx {
		direction = flagInbound
	}
	if r.n >= len(wire.MAC{}) && r.data[0]&1 != 0 {
		reception = flagMulticast
		if wire.MAC(r.data[:6]) == (wire.MAC{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}) {
			reception = flagBroadcast
		}
	}
	return direction | reception
}

func (w *writer) flush() error {
	w.unflush = false
	if w.ifaces == 0 {
		return nil
	}
	err := w.sink.buf.Flush()
	w.settle()
	return err
}

func (w *writer) settle() { w.c.written.Add(w.sink.settle()) }

func (w *writer) finish() error {
	if err := w.sync(); err != nil { // a port may have been attached just before the end
		return err
	}
	all := w.c.interfaces()
	if len(all) == 0 { // a file without an interface would not be readable
		if err := w.add(&iface{name: "none", about: "no port was attached"}); err != nil {
			return err
		}
	}
	now := time.Now()
	for _, i := range all {
		if err := w.statistics(i, now); err != nil {
			return fmt.Errorf("statistics: %w", err)
		}
	}
	return w.flush()
}

func (w *writer) statistics(i *iface, now time.Time) error {
	b := &w.block
	b.begin(interfaceStatistics)
	b.uint32(uint32(i.id))
	b.timestamp(now.UnixNano())
	b.optionTime(isbStartTime, w.c.start)
	b.optionTime(isbEndTime, now)
	b.optionUint64(isbIfDrop, i.missed.Load())
	b.optionUint64(isbIfRecv, i.seen.Load())
	b.end(0)
	return w.write(*b)
}
