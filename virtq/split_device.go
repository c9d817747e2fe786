package virtq

import (
	"fmt"

	"vnic.dev/vnic/dma"
)

// deviceRing is the memory of a split ring as the device uses it: it reads desc and avail, and writes used. It
// keeps no index; the caller's are passed in. The packed ring will have another.
type deviceRing struct {
	mask     uint16
	flags    uint16 // used.flags as stored
	eventIdx bool
	fence    fence
	pins     [3]*dma.Pin // desc, avail, used

	descs  [][descLen]byte // the descriptor table
	avails []byte          // avail.ring
	useds  []byte          // used.ring

	used       header // used.flags, used.idx
	availEvent field
	availFlags field
	availIdx   field
	usedEvent  field
	usedIdx    field // ours, read back once: where the ring was left
}

// pin takes hold of the ring's three parts and finds its fields.
func (r *deviceRing) pin(s *dma.Space, c *Config) (err error) {
	*r = deviceRing{mask: c.Size - 1, eventIdx: c.EventIdx}
	defer func() {
		if err != nil {
			r.close()
		}
	}()
	n := int(c.Size)
	for i, p := range [...]struct {
		name  string
		iova  uint64
		n     int
		align uint64
	}{
		{"descriptor table", c.Desc, n * descLen, descAlign},
		{"avail ring", c.Avail, availLen(n), availAlign},
		{"used ring", c.Used, usedLen(n), usedAlign},
	} {
		if p.iova%p.align != 0 {
			return fmt.Errorf("%s at %#x: not %d-aligned: %w", p.name, p.iova, p.align, ErrBadRing)
		}
		if r.pins[i], err = s.Pin(p.iova, uint64(p.n)); err != nil {
			return fmt.Errorf("%s at %#x: %w: %w", p.name, p.iova, ErrBadRing, err)
		}
	}
	avail, used := r.pins[1].Bytes(), r.pins[2].Bytes()
	r.descs = rows(r.pins[0].Bytes())
	r.avails = avail[ringHeader : ringHeader+2*n]
	r.useds = used[ringHeader : ringHeader+usedElem*n]
	if r.used, err = headerAt(used); err != nil {
		return fmt.Errorf("used ring at %#x: %w", c.Used, err)
	}
	return fields(
		place{&r.availFlags, avail, 0},
		place{&r.availIdx, avail, 2},
		place{&r.usedEvent, avail, len(avail) - 2},
		place{&r.usedIdx, used, 2},
		place{&r.availEvent, used, len(used) - 2})
}

func (r *deviceRing) close() {
	for i, p := range r.pins {
		if p != nil {
			p.Close()
			r.pins[i] = nil
		}
	}
}

// avail is avail.idx: the entries before it may be read.
func (r *deviceRing) avail() uint16 { return r.availIdx.load() }

// head reads the avail entry at index i once.
func (r *deviceRing) head(i uint16) uint16 { return le.Uint16(r.avails[2*int(i&r.mask):]) }

// put writes the used element {id u32, len u32} at index i.
func (r *deviceRing) put(i uint16, e uint64) { le.PutUint64(r.useds[usedElem*int(i&r.mask):], e) }

// publish moves used.idx from was to now, and tells whether the driver wants a call. The store is a full barrier
// before the load.
func (r *deviceRing) publish(now, was uint16) (call bool) {
	r.used.store(r.flags, now)
	if r.eventIdx {
		return needEvent(r.usedEvent.load(), now, was)
	}
	return r.availFlags.load()&availNoInterrupt == 0
}

// disableKick sets the event just behind what was consumed, where it is farthest away, or the flag.
func (r *deviceRing) disableKick(idx, next uint16) {
	if r.eventIdx {
		r.availEvent.store(next - 1)
		return
	}
	r.flags = usedNoNotify
	r.used.store(r.flags, idx)
}

func (r *deviceRing) enableKick(idx, next uint16) (avail uint16) {
	if r.eventIdx {
		r.availEvent.store(next)
		r.fence.full()
	} else {
		r.flags = 0
		r.used.store(0, idx)
	}
	return r.availIdx.load()
}
