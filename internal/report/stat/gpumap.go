package stat

import (
	"cmp"
	"math/bits"
	"slices"
	"sync"

	"vnic.dev/vnic/dma"
	"vnic.dev/vnic/internal/control"
	"vnic.dev/vnic/internal/lab"
)

// A GPUMap divides a GPU's memory into at most mostUnits units of equal size, a page or more.
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

// gpuMaps remembers which units of GPU memory each receive queue has posted, as far as it has read the ring: such a
// unit that is no longer posted is held.
type gpuMaps struct {
	mu        sync.Mutex
	seen      map[seenOf]*bitmap
	forgotten uint64 // number of calls of forget; if it changes while queue reads a ring, queue remembers nothing
}

type seenOf struct {
	port       string
	queue, gpu int
}

type bitmap [mostUnits / 64]uint64

func (b *bitmap) set(i uint64)      { b[i/64] |= 1 << (i % 64) }
func (b *bitmap) has(i uint64) bool { return b[i/64]&(1<<(i%64)) != 0 }

// forget deletes the record of a queue; -1: of all queues of the port.
func (m *gpuMaps) forget(port string, queue int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.forgotten++
	for k := range m.seen {
		if k.port == port && (queue < 0 || k.queue == queue) {
			delete(m.seen, k)
		}
	}
}

// unitOf returns the bytes of a unit, a power of two, for a GPU's memory of size bytes.
func unitOf(size uint64) uint64 {
	unit := uint64(pageSize)
	for unit*mostUnits < size {
		unit *= 2
	}
	return unit
}

// read returns the maps of all GPUs of a lab, and remembers which units are posted now.
func (m *gpuMaps) read(l *lab.Lab) []GPUMap {
	out := []GPUMap{}
	for _, x := range l.Machines() {
		var views []*view
		for _, g := range x.GPUs {
			size := unitOf(g.Size())
			views = append(views, &view{g, size, make([]MemoryRange, (g.Size()+size-1)/size)})
		}
		for _, p := range x.Ports {
			state := p.NIC().State()
			for _, v := range views {
				v.sends(p.Name, state)
			}
			for q := range p.NIC().QueuePairs() {
				m.queue(p, q, bindingOf(state, q), views)
			}
		}
		for _, v := range views {
			out = append(out, v.ranges())
		}
	}
	return out
}

func (m *gpuMaps) look(p *lab.Port) {
	var views []*view
	for _, g := range p.GPUs {
		views = append(views, &view{gpu: g, size: unitOf(g.Size())})
	}
	for q := range p.NIC().QueuePairs() {
		m.queue(p, q, 0, views)
	}
}

type view struct {
	gpu   *lab.GPUMemory
	size  uint64        // of a unit, in bytes
	units []MemoryRange // one for each unit, without Off and Len; nil in look, which makes no map
}

// ranges returns the map: ranges of adjacent equal units, without units that have no state.
func (v *view) ranges() GPUMap {
	out := GPUMap{GPU: v.gpu.Name, Bytes: v.gpu.Size(), Ranges: []MemoryRange{}}
	for i := 0; i < len(v.units); {
		u := v.units[i]
		n := 1
		for i+n < len(v.units) && v.units[i+n] == u {
			n++
		}
		if u.State != "" {
			u.Off, u.Len = uint64(i)*v.size, uint64(n)*v.size
			out.Ranges = append(out.Ranges, u)
		}
		i += n
	}
	return out
}

func (v *view) sends(port string, s *control.State) {
	for _, b := range s.Bindings {
		if !b.Tx {
			continue
		}
		for _, f := range s.Buffers {
			if f.ID == b.Buffer && int(f.GPU) == v.gpu.ID() {
				for i := f.Off / v.size; i*v.size < min(f.Off+f.Size, v.gpu.Size()); i++ {
					v.units[i] = MemoryRange{State: stateSend, Port: port, Queue: -1, Binding: b.ID}
				}
			}
		}
	}
}

// queue marks the units that a receive queue has posted now, or earlier since forget. It remembers the units posted
// now, unless forget is called meanwhile: then it marks only these.
func (m *gpuMaps) queue(p *lab.Port, q int, binding uint32, views []*view) {
	m.mu.Lock()
	before := m.forgotten
	m.mu.Unlock()
	posted := make([]*bitmap, len(views)) // of each view; nil: nothing of its GPU's memory is posted
	p.NIC().Posted(q, func(segments []dma.Segment) {
		for _, s := range segments {
			k := slices.IndexFunc(views, func(v *view) bool { return v.gpu.ID() == s.GPU() })
			if k < 0 || s.Len == 0 {
				continue
			}
			if posted[k] == nil {
				posted[k] = new(bitmap)
			}
			from, size := s.Region.FileOffset()+s.Off, views[k].size
			for i := from / size; i <= (from+uint64(s.Len)-1)/size && i*size < views[k].gpu.Size(); i++ {
				posted[k].set(i)
			}
		}
	})
	m.mu.Lock()
	defer m.mu.Unlock()
	for k, v := range views {
		seen := posted[k]
		if m.forgotten == before {
			seen = m.remember(seenOf{p.Name, q, v.gpu.ID()}, posted[k])
		}
		if seen != nil && v.units != nil {
			v.mark(p.Name, q, binding, seen, cmp.Or(posted[k], new(bitmap)))
		}
	}
}

// remember adds posted to the units that the queue has posted before, and returns all; nil: none. The caller holds mu.
func (m *gpuMaps) remember(key seenOf, posted *bitmap) *bitmap {
	seen := m.seen[key]
	if posted == nil {
		return seen
	}
	if seen == nil {
		if m.seen == nil {
			m.seen = map[seenOf]*bitmap{}
		}
		seen = new(bitmap)
		m.seen[key] = seen
	}
	for w := range seen {
		seen[w] |= posted[w]
	}
	return seen
}

func (v *view) mark(port string, queue int, binding uint32, seen, posted *bitmap) {
	for w, all := range seen {
		for ; all != 0; all &= all - 1 {
			i := uint64(w*64 + bits.TrailingZeros64(all))
			state := stateHeld
			if posted.has(i) {
				state = statePosted
			}
			v.units[i] = MemoryRange{State: state, Port: port, Queue: queue, Binding: binding}
		}
	}
}

// bindingOf returns the ID of a receive queue's newest binding; 0: none.
func bindingOf(s *control.State, queue int) (id uint32) {
	for _, b := range s.Bindings { // sorted by ID
		if !b.Tx && slices.Contains(b.Queues, uint16(queue)) {
			id = b.ID
		}
	}
	return id
}
