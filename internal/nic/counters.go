package nic

import (
	"sync/atomic"

	"vnic.dev/vnic/dma"
	"vnic.dev/vnic/internal/control"
)

// Counters count the packets of a transmit queue, or of a flow counter in one direction. One goroutine at a time
// adds to them; any may read.
type Counters struct {
	live control.DirCounters // accessed atomically
}

// add adds n to c, which has one writer at a time and any number of readers.
func add(c *uint64, n uint64) { atomic.StoreUint64(c, atomic.LoadUint64(c)+n) }

// addAny is add, but stores nothing if n is 0.
func addAny(c *uint64, n uint64) {
	if n > 0 {
		add(c, n)
	}
}

// counter is a counter with one writer at a time; any goroutine may load v.
type counter struct{ v atomic.Uint64 }

func (c *counter) add(n uint64) { c.v.Store(c.v.Load() + n) }

// bytesByMem counts a packet's payload bytes by kind of memory. bounced is the part of host that went through host
// memory on its way to or from a GPU.
type bytesByMem struct {
	device, gpuFile, host, bounced uint64

	buffers uint32 // memory segments of headers and payload
	nodes   bool   // count host memory by NUMA node
	gpu     int32  // 1 + the GPU of the first byte in GPU memory; 0: none
	node    int32  // 1 + the node of the first byte in host memory of a known node; 0: none

	// Valid if gpu is not 0.
	second      int32  // 1 + the second GPU; 0: none
	secondBytes uint64 // in other GPUs than the first

	// Valid if node is not 0.
	secondNode      int32  // 1 + the second node; 0: none
	here, elsewhere uint64 // bytes on the first node, and on other known ones
}

// reset prepares w for a frame. It does not clear the fields that are not valid after it.
func (w *bytesByMem) reset(nodes bool) {
	w.device, w.gpuFile, w.host, w.bounced = 0, 0, 0, 0
	w.buffers, w.nodes, w.gpu, w.node = 0, nodes, 0, 0
}

// locate adds the bytes of segs to w, and returns their number.
func (w *bytesByMem) locate(segs []dma.Segment) (total uint64) {
	for _, s := range segs {
		total += uint64(s.Len)
		for s.Len > 0 {
			d, n := s.MemKind()
			if n == 0 { // s.Off is beyond its region: copying will return an error
				n = s.Len
			}
			switch d {
			case dma.GPU:
				w.device += uint64(n)
				w.gpuBytes(&s, n)
			case dma.GPUFile:
				w.gpuFile += uint64(n)
				w.gpuBytes(&s, n)
			default:
				w.host += uint64(n)
				if w.nodes {
					w.nodeBytes(s.Node(), uint64(n))
				}
			}
			s.Off, s.Len = s.Off+uint64(n), s.Len-n
		}
	}
	return total
}

// gpuBytes records the GPU of s, and adds n to secondBytes unless it is the first GPU. So bytes in a third GPU count
// for the second.
func (w *bytesByMem) gpuBytes(s *dma.Segment, n uint32) {
	switch g := int32(s.GPU() + 1); {
	case w.gpu == 0:
		w.gpu, w.second, w.secondBytes = g, 0, 0
	case g == w.gpu:
	default:
		if w.second == 0 {
			w.second = g
		}
		w.secondBytes += uint64(n)
	}
}

// nodeBytes counts n bytes for a NUMA node, or nothing for -1, an unknown node. Bytes on a third node count for the
// second.
func (w *bytesByMem) nodeBytes(node int, n uint64) {
	switch slot := int32(node + 1); {
	case slot == 0:
	case w.node == 0:
		w.node, w.here, w.secondNode, w.elsewhere = slot, n, 0, 0
	case slot == w.node:
		w.here += n
	default:
		if w.secondNode == 0 {
			w.secondNode = slot
		}
		w.elsewhere += n
	}
}

// nodesOf adds the bytes of w by NUMA node to t.
func (t *bytesByMem) nodesOf(w *bytesByMem) {
	if w.node == 0 {
		return
	}
	t.nodeBytes(int(w.node-1), w.here)
	if w.secondNode != 0 {
		t.nodeBytes(int(w.secondNode-1), w.elsewhere)
	}
}

// placed adds the buffers and secondBytes of w to t, and sets t's GPUs by w's. A first GPU of t stays.
func (t *bytesByMem) placed(w *bytesByMem) {
	t.buffers += w.buffers
	if w.gpu == 0 {
		return
	}
	if t.gpu == 0 {
		t.gpu, t.second, t.secondBytes = w.gpu, 0, 0
	}
	if w.second != 0 {
		t.second = w.second
	}
	t.secondBytes += w.secondBytes
}

// addTo adds the delta to c, and calls clear. It needs no atomic stores to c: readers of c take the lock that
// the caller holds.
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
	t.clear()
}

// delta sums up counts, as of a batch, until addTo or flush adds them to counters.
type delta struct {
	packets, segments, header, drops, dropped uint64
	device, gpuFile, host, bounced, buffers   uint64

	to      *Traffic // to which bytes by GPU and node, and buffers, are added; nil: to none
	gpu     int32    // 1 + the GPU of the bytes in direct and through; 0: none yet
	direct  uint64
	through uint64 // bytes of packets with bounced bytes

	node int32 // 1 + the NUMA node of the bytes in the field here; 0: none yet
	here uint64
}

// Traffic counts a queue's payload bytes in one direction by GPU and NUMA node, and its buffers (memory segments).
// Host counts payload in host memory that was not bounced, as far as its node is known.
type Traffic struct {
	Buffers         uint64
	Direct, Bounced [dma.MaxGPUs]uint64
	Host            [dma.MaxNodes]uint64
}

func (t *Traffic) read() (now Traffic) {
	now.Buffers = atomic.LoadUint64(&t.Buffers)
	for i := range now.Direct {
		now.Direct[i], now.Bounced[i] = atomic.LoadUint64(&t.Direct[i]), atomic.LoadUint64(&t.Bounced[i])
	}
	for i := range now.Host {
		now.Host[i] = atomic.LoadUint64(&t.Host[i])
	}
	return now
}

func (t *delta) count(segments, header uint64, w *bytesByMem) {
	t.packets++
	t.segments += segments
	t.header += header
	t.add(w)
}

func (t *delta) add(w *bytesByMem) {
	t.device += w.device
	t.gpuFile += w.gpuFile
	t.host += w.host
	t.bounced += w.bounced
	t.buffers += uint64(w.buffers)
	if w.gpu|w.node != 0 && t.to != nil {
		t.places(w)
	}
}

// places adds the payload of w by GPU and NUMA node to the delta. The field to is not nil.
func (t *delta) places(w *bytesByMem) {
	if w.gpu != 0 {
		t.toGPU(w.gpu, w, w.device+w.gpuFile+w.bounced-w.secondBytes)
		if w.second != 0 {
			t.toGPU(w.second, w, w.secondBytes)
		}
	}
	if w.node != 0 {
		t.on(w.node, w.here)
		if w.secondNode != 0 {
			t.on(w.secondNode, w.elsewhere)
		}
	}
}

// on adds n bytes for NUMA node number node-1.
func (t *delta) on(node int32, n uint64) {
	if t.node != node {
		t.flushNode()
		t.node = node
	}
	t.here += n
}

func (t *delta) flushNode() {
	if t.node != 0 {
		addAny(&t.to.Host[t.node-1], t.here)
		t.here = 0
	}
}

// toGPU adds n bytes of w for GPU number gpu-1: to through if w has bounced bytes, else to direct.
func (t *delta) toGPU(gpu int32, w *bytesByMem, n uint64) {
	if t.gpu != gpu {
		t.flushGPU()
		t.gpu = gpu
	}
	if w.bounced > 0 {
		t.through += n
	} else {
		t.direct += n
	}
}

func (t *delta) flushGPU() {
	if t.gpu != 0 {
		addAny(&t.to.Direct[t.gpu-1], t.direct)
		addAny(&t.to.Bounced[t.gpu-1], t.through)
		t.direct, t.through = 0, 0
	}
}

// clear adds the bytes by GPU and node, and the buffers, to the Traffic in to, if it is not nil. Then it clears the
// delta except for to.
func (t *delta) clear() {
	to := t.to
	if to != nil {
		t.flushGPU()
		t.flushNode()
		addAny(&to.Buffers, t.buffers)
	}
	*t = delta{to: to}
}

func (t *delta) drop(payload uint64) {
	t.drops++
	t.dropped += payload
}

// flush adds the delta to c, and calls clear.
func (t *delta) flush(c *Counters) {
	if t.packets > 0 {
		add(&c.live.Packets, t.packets)
		add(&c.live.Segments, t.segments)
		add(&c.live.HeaderBytes, t.header)
		addAny(&c.live.DeviceBytes, t.device)
		addAny(&c.live.GPUFileBytes, t.gpuFile)
		t.flushNode() // before HostBytes, which includes these bytes
		addAny(&c.live.BouncedBytes, t.bounced)
		addAny(&c.live.HostBytes, t.host)
	}
	if t.drops > 0 {
		add(&c.live.Drops, t.drops)
		add(&c.live.DroppedBytes, t.dropped)
	}
	t.clear()
}

// Read returns the counters. While a writer adds, they may be inconsistent, but host bytes that were not
// bounced, and the mean header length, are not too great.
func (c *Counters) Read() (now control.DirCounters) {
	to := now.All()
	for i, v := range c.live.All() {
		*to[i] = atomic.LoadUint64(v)
	}
	now.Packets = atomic.LoadUint64(&c.live.Packets) // added first, so read last
	return now
}
