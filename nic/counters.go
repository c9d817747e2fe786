package nic

import (
	"sync/atomic"

	"vnic.dev/vnic/control"
	"vnic.dev/vnic/dma"
)

// Counters count one direction of a queue or a flow counter. Their owner of the moment (a transmit
// queue's worker, the holder of a flow counter's lock) adds; any goroutine may read.
type Counters struct {
	live control.DirCounters // each field is stored and loaded atomically
}

// add adds to a counter, which has one writer at a time, so it needs no locked add.
func add(c *uint64, n uint64) { atomic.StoreUint64(c, atomic.LoadUint64(c)+n) }

// addAny spares the store where there is nothing to add.
func addAny(c *uint64, n uint64) {
	if n > 0 {
		add(c, n)
	}
}

// counter is one that stands alone.
type counter struct{ v atomic.Uint64 }

func (c *counter) add(n uint64) { c.v.Store(c.v.Load() + n) }

// bytesByMem is how much of a payload lies in which kind of memory, on this port's side.
type bytesByMem struct{ device, gpuFile, host, bounced uint64 }

// locate adds up segs by kind of memory, and returns how many bytes they are.
func (w *bytesByMem) locate(segs []dma.Segment) (total uint64) {
	for _, s := range segs {
		total += uint64(s.Len)
		for s.Len > 0 {
			d, n := s.MemKind()
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

// addTo adds the delta, and empties it, where a lock is held that readers take too: that is cheaper than flush.
func (t *delta) addTo(c *control.DirCounters) {
	if t.packets > 0 {
		c.Packets += t.packets
		c.Segments += t.segments
		c.HeaderBytes += t.header
		c.DeviceBytes += t.device
		c.GPUFileBytes += t.gpuFile
		c.HostBytes += t.host
		c.BouncedBytes += t.bounced
	}
	if t.drops > 0 {
		c.Drops += t.drops
		c.DroppedBytes += t.dropped
	}
	*t = delta{}
}

// delta is what a batch adds to Counters: a store that others may read at any time costs as much as
// a small copy, so there is one for a batch and not for a packet.
type delta struct {
	packets, segments, header, drops, dropped uint64
	bytesByMem
}

func (t *delta) count(segments, header uint64, w *bytesByMem) {
	t.packets++
	t.segments += segments
	t.header += header
	t.add(w)
}

func (t *bytesByMem) add(w *bytesByMem) {
	t.device += w.device
	t.gpuFile += w.gpuFile
	t.host += w.host
	t.bounced += w.bounced
}

func (t *delta) drop(payload uint64) {
	t.drops++
	t.dropped += payload
}

// flush adds the delta, and empties it.
func (t *delta) flush(c *Counters) {
	if t.packets > 0 {
		add(&c.live.Packets, t.packets)
		add(&c.live.Segments, t.segments)
		add(&c.live.HeaderBytes, t.header)
		addAny(&c.live.DeviceBytes, t.device)
		addAny(&c.live.GPUFileBytes, t.gpuFile)
		addAny(&c.live.HostBytes, t.host)
		addAny(&c.live.BouncedBytes, t.bounced)
	}
	if t.drops > 0 {
		add(&c.live.Drops, t.drops)
		add(&c.live.DroppedBytes, t.dropped)
	}
	*t = delta{}
}

// Read gives the counters as the control channel carries them.
func (c *Counters) Read() (now control.DirCounters) {
	to := now.All()
	for i, v := range c.live.All() {
		*to[i] = atomic.LoadUint64(v)
	}
	return now
}

func sum(a *control.DirCounters, b control.DirCounters) {
	to := a.All()
	for i, v := range b.All() {
		*to[i] += *v
	}
}
