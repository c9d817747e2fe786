package capture

import (
	"fmt"
	"runtime"
	"time"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"github.com/gopacket/gopacket/pcapgo"

	"vnic.dev/vnic/wire"
)

// writer is what the writing goroutine owns.
type writer struct {
	c       *Capture
	sink    *sink
	ng      *pcapgo.NgWriter // nil: nothing is written yet
	ifaces  int              // that the file knows
	text    text
	unflush bool // something may not be in the file yet
}

// run writes what is captured until Close.
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
			w.try(w.flush) // a reader of the growing file sees it
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

// try does something with the file, unless there was an error before.
func (w *writer) try(f func() error) {
	if w.c.broken.Load() {
		w.unflush = false
		return
	}
	if err := f(); err != nil {
		w.c.fail(err)
	}
}

// sync makes the file know all interfaces.
func (w *writer) sync() error {
	all := w.c.interfaces()
	for _, i := range all[w.ifaces:] {
		if err := w.add(i); err != nil {
			return err
		}
	}
	return nil
}

// add describes an interface; before the first one comes the section header.
func (w *writer) add(i *iface) (err error) {
	about := pcapgo.NgInterface{Name: i.name, Description: i.about, OS: runtime.GOOS, LinkType: layers.LinkTypeEthernet,
		SnapLength: uint32(recordSize(w.c.payload))}
	if w.ng != nil {
		_, err = w.ng.AddInterface(about)
	} else {
		w.ng, err = pcapgo.NewNgWriterInterface(w.sink.buf, about, pcapgo.NgWriterOptions{
			SectionInfo: pcapgo.NgSectionInfo{Hardware: runtime.GOARCH, OS: runtime.GOOS, Application: "vnic",
				Comment: w.c.comment}})
	}
	w.ifaces++
	w.unflush = true
	return err
}

// take writes a record. What cannot be written any more was not captured.
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

func (w *writer) packet(r *record) error {
	r.comment(&w.text)
	o := pcapgo.NgPacketOptions{Comments: []string{string(w.text)}, Flags: flags(r)}
	if r.queue >= 0 {
		q := uint32(r.queue)
		o.Queue = &q
	}
	if missed := r.iface.missed.Load(); missed != r.iface.told {
		n := missed - r.iface.told
		o.DropCount, r.iface.told = &n, missed
	}
	return w.ng.WritePacketWithOptions(gopacket.CaptureInfo{Timestamp: time.Unix(0, r.when), CaptureLength: r.n,
		Length:         int(r.length),
		InterfaceIndex: r.iface.id}, r.data[:r.n], o)
}

// flags tell a frame's direction and kind of address.
func flags(r *record) *pcapgo.NgEpbFlags {
	f := &pcapgo.NgEpbFlags{Direction: pcapgo.NgEpbFlagDirectionOutbound, Reception: pcapgo.NgEpbFlagReceptionTypeUnicast}
	if r.iface.rx {
		f.Direction = pcapgo.NgEpbFlagDirectionInbound
	}
	if r.n >= len(wire.MAC{}) && r.data[0]&1 != 0 {
		f.Reception = pcapgo.NgEpbFlagReceptionTypeMulticast
		if wire.MAC(r.data[:6]) == (wire.MAC{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}) {
			f.Reception = pcapgo.NgEpbFlagReceptionTypeBroadcast
		}
	}
	return f
}

func (w *writer) flush() error {
	w.unflush = false
	if w.ng == nil {
		return nil
	}
	err := w.ng.Flush()
	w.settle()
	return err
}

// settle counts the packets that have come out whole.
func (w *writer) settle() { w.c.written.Add(w.sink.settle()) }

// finish says for each interface what was seen and what was missed.
func (w *writer) finish() error {
	all := w.c.interfaces()
	if len(all) == 0 { // a file without an interface is none that could be read
		if err := w.add(&iface{name: "none", about: "no port was attached"}); err != nil {
			return err
		}
	}
	now := time.Now()
	for _, i := range all {
		if err := w.ng.WriteInterfaceStats(i.id, pcapgo.NgInterfaceStatistics{LastUpdate: now, StartTime: w.c.start,
			EndTime:         now,
			PacketsReceived: i.seen.Load(), PacketsDropped: i.missed.Load()}); err != nil {
			return fmt.Errorf("statistics: %w", err)
		}
	}
	return w.flush()
}
