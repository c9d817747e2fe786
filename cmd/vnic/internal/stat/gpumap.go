package stat

import (
	"cmp"
	"math/bits"
	"slices"
	"sync"

	"vnic.dev/vnic/control"
	"vnic.dev/vnic/dma"
	"vnic.dev/vnic/lab"
)

// A GPU's memory is shown in units of a page or more, so that no map has more than mostUnits.
const (
	pageSize  = 4096
	mostUnits = 2048
)

// States of a MemoryRange.
const (
	statePosted = "posted"
	stateHeld   = "held"
	stateSend   = "send"
)

// gpuMaps remembers what was posted: what is posted no more is held. It has a bit for each unit of a GPU and queue.
type gpuMaps struct {
	mu   sync.Mutex
	seen map[seenOf]*bitmap
}

type seenOf struct {
	port       string
	queue, gpu int
}

type bitmap [mostUnits / 64]uint64

func (b *bitmap) set(i uint64)      { b[i/64] |= 1 << (i % 64) }
func (b *bitmap) has(i uint64) bool { return b[i/64]&(1<<(i%64)) != 0 }

// forget drops what a queue had posted, as it is set up anew; queue -1: all of the port.
func (m *gpuMaps) forget(port string, queue int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for k := range m.seen {
		if k.port == port && (queue < 0 || k.queue == queue) {
			delete(m.seen, k)
		}
	}
}

// unitOf is in which units a GPU's memory is shown, in bytes: a power of two.
func unitOf(size uint64) uint64 {
	unit := uint64(pageSize)
	for unit*mostUnits < size {
		unit *= 2
	}
	return unit
}

// read gives the maps of all GPUs of a lab.
func (m *gpuMaps) read(l *lab.Lab) []GPUMap {
	out := []GPUMap{}
	for _, x := range l.Machines() {
		for _, g := range x.GPUs {
			out = append(out, m.gpu(x, g))
		}
	}
	return out
}

// unit is what is to be shown of one unit.
type unit struct {
	state   string
	port    string
	queue   int
	binding uint32
}

func (m *gpuMaps) gpu(x *lab.Machine, g *lab.GPUMemory) GPUMap {
	size := unitOf(g.Size())
	units := make([]unit, (g.Size()+size-1)/size)
	for _, p := range x.Ports {
		m.sends(p, g, size, units)
		for q := range p.NIC().QueuePairs() {
			m.queue(p, q, g, size, units)
		}
	}
	out := GPUMap{GPU: g.Name, Bytes: g.Size(), Ranges: []MemoryRange{}}
	for i := 0; i < len(units); {
		u := units[i]
		n := 1
		for i+n < len(units) && units[i+n] == u {
			n++
		}
		if u.state != "" {
			out.Ranges = append(out.Ranges, MemoryRange{Off: uint64(i) * size, Len: uint64(n) * size, State: u.state,
				Port: u.port, Queue: u.queue, Binding: u.binding})
		}
		i += n
	}
	return out
}

// sends marks what is bound for transmit.
func (m *gpuMaps) sends(p *lab.Port, g *lab.GPUMemory, size uint64, units []unit) {
	s := p.NIC().State()
	for _, b := range s.Bindings {
		if !b.Tx {
			continue
		}
		for _, f := range s.Buffers {
			if f.ID == b.Buffer && int(f.GPU) == g.ID() {
				for i := f.Off / size; i*size < min(f.Off+f.Size, g.Size()); i++ {
					units[i] = unit{state: stateSend, port: p.Name, queue: -1, binding: b.ID}
				}
			}
		}
	}
}

// queue marks what a receive queue has posted, and what it had.
func (m *gpuMaps) queue(p *lab.Port, q int, g *lab.GPUMemory, size uint64, units []unit) {
	var posted bitmap
	some := false
	p.NIC().Posted(q, func(at []dma.Segment) {
		for _, s := range at {
			if s.GPU() != g.ID() || s.Len == 0 {
				continue
			}
			from := s.Region.FileOffset() + s.Off
			for i := from / size; i <= (from+uint64(s.Len)-1)/size && i < uint64(len(units)); i++ {
				posted.set(i)
				some = true
			}
		}
	})
	m.mu.Lock()
	defer m.mu.Unlock()
	key := seenOf{p.Name, q, g.ID()}
	seen := m.seen[key]
	if seen == nil {
		if !some {
			return
		}
		seen = new(bitmap)
		if m.seen == nil {
			m.seen = map[seenOf]*bitmap{}
		}
		m.seen[key] = seen
	}
	binding := bindingOf(p, q)
	for w := range seen {
		seen[w] |= posted[w]
		for all := seen[w]; all != 0; all &= all - 1 {
			i := uint64(w*64 + bits.TrailingZeros64(all))
			u := unit{state: stateHeld, port: p.Name, queue: q, binding: binding}
			if posted.has(i) {
				u.state = statePosted
			}
			if i < uint64(len(units)) {
				units[i] = u
			}
		}
	}
}

// bindingOf is the binding of a receive queue, 0 if no command has made one.
func bindingOf(p *lab.Port, queue int) (id uint32) {
	s := p.NIC().State()
	slices.SortFunc(s.Bindings, func(a, b control.Binding) int { return cmp.Compare(a.ID, b.ID) })
	for _, b := range s.Bindings {
		if !b.Tx && slices.Contains(b.Queues, uint16(queue)) {
			id = b.ID
		}
	}
	return id
}
