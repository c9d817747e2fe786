package nic

import (
	"sync/atomic"

	"vnic.dev/vnic/control"
	"vnic.dev/vnic/dma"
)

// Counters count one direction of a queue or a meter. Whoever owns them at the moment (a transmit queue's worker, the
// holder of a receive queue's lock) adds; anyone may read.
type Counters struct {
	packets, segments, header        counter
	device, gpuFile, host            counter
	bounced, retrans, drops, dropped counter
}

// counter has one writer at a time, so it needs no locked add.
type counter struct{ v atomic.Uint64 }

func (c *counter) add(n uint64) { c.v.Store(c.v.Load() + n) }

// where is how much of a payload lies in which domain, on this port's side.
type where struct{ device, gpuFile, host, bounced uint64 }

// locate adds up the domains of segs, and returns how many bytes they are.
func (w *where) locate(segs []dma.Segment) (total uint64) {
	for _, s := range segs {
		total += uint64(s.Len)
		for s.Len > 0 {
			d, n := s.Domain()
			if n == 0 { // beyond its region: the copier refuses it
				n = s.Len
			}
			switch d {
			case dma.GPU:
				w.device += uint64(n)
			case dma.GPUFile:
				w.gpuFile += uint64(n)
			default:
				w.host += uint64(n)
			}
			s.Off, s.Len = s.Off+uint64(n), s.Len-n
		}
	}
	return total
}

// tally is what a batch adds to Counters: a store that others may read at any time costs as much as a small copy, so there
// is one for a batch and not for a packet.
type tally struct {
	packets, segments, header, drops, dropped uint64
	where
}

func (t *tally) count(segments, header uint64, w *where) {
	t.packets++
	t.segments += segments
	t.header += header
	t.device += w.device
	t.gpuFile += w.gpuFile
	t.host += w.host
	t.bounced += w.bounced
}

func (t *tally) drop(payload uint64) {
	t.drops++
	t.dropped += payload
}

// flush adds the tally, and empties it.
func (t *tally) flush(c *Counters) {
	if t.packets > 0 {
		c.packets.add(t.packets)
		c.segments.add(t.segments)
		c.header.add(t.header)
		c.place(&t.where)
	}
	if t.drops > 0 {
		c.drops.add(t.drops)
		c.dropped.add(t.dropped)
	}
	*t = tally{}
}

func (c *Counters) count(segments, header uint64, w *where) {
	c.packets.add(1)
	c.segments.add(segments)
	c.header.add(header)
	c.place(w)
}

func (c *Counters) place(w *where) {
	if w.device > 0 {
		c.device.add(w.device)
	}
	if w.gpuFile > 0 {
		c.gpuFile.add(w.gpuFile)
	}
	if w.host > 0 {
		c.host.add(w.host)
	}
	if w.bounced > 0 {
		c.bounced.add(w.bounced)
	}
}

func (c *Counters) drop(payload uint64) {
	c.drops.add(1)
	c.dropped.add(payload)
}

// Read gives the counters as the control channel carries them.
func (c *Counters) Read() control.DirCounters {
	return control.DirCounters{
		Packets: c.packets.v.Load(), Segments: c.segments.v.Load(), HeaderBytes: c.header.v.Load(),
		DeviceBytes: c.device.v.Load(), GPUFileBytes: c.gpuFile.v.Load(), HostBytes: c.host.v.Load(),
		BouncedBytes: c.bounced.v.Load(), RetransBytes: c.retrans.v.Load(),
		Drops: c.drops.v.Load(), DroppedBytes: c.dropped.v.Load(),
	}
}

func sum(a *control.DirCounters, b control.DirCounters) {
	a.Packets += b.Packets
	a.Segments += b.Segments
	a.HeaderBytes += b.HeaderBytes
	a.DeviceBytes += b.DeviceBytes
	a.GPUFileBytes += b.GPUFileBytes
	a.HostBytes += b.HostBytes
	a.BouncedBytes += b.BouncedBytes
	a.RetransBytes += b.RetransBytes
	a.Drops += b.Drops
	a.DroppedBytes += b.DroppedBytes
}
