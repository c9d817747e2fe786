package virtq

import (
	"errors"
	"fmt"
	"math"

	"vnic.dev/vnic/dma"
)

// splitDevice is the memory of a split ring as the device uses it. A pos and a Base are avail indices.
type splitDevice struct {
	walk     walker
	conf     Config
	mask     uint16
	shown    uint16 // the value of used.idx in the ring
	flags    uint16 // the value of used.flags to store
	eventIdx bool
	fence    fence
	pins     [3]*dma.Pin // desc, avail, used

	avails [][availElem]byte // avail.ring
	useds  [][usedElem]byte  // used.ring

	used       header // used.flags, used.idx
	availEvent field
	availFlags field
	availIdx   field
	usedEvent  field
	usedIdx    field // read at the start: where an earlier device left the ring
}

func pinSplit(s *dma.Space, c Config) (deviceRing, error) {
	if err := checkSize(c.Size); err != nil {
		return nil, err
	}
	if c.Base.state > math.MaxUint16 {
		return nil, fmt.Errorf("base %#x is no index of a split ring: %w", c.Base.state, ErrBadRing)
	}
	r := &splitDevice{conf: c}
	r.walk.init(s, &c)
	if err := r.pin(); err != nil {
		return nil, err
	}
	return r, nil
}

func (r *splitDevice) repin() (deviceRing, error) {
	q := &splitDevice{walk: r.walk, conf: r.conf, shown: r.shown, flags: r.flags}
	if err := q.pin(); err != nil {
		return nil, err
	}
	r.close()
	return q, nil
}

// pin pins the ring's three parts and finds its fields.
func (r *splitDevice) pin() (err error) {
	c := &r.conf
	r.mask, r.eventIdx = c.Size-1, c.EventIdx
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
		if r.pins[i], err = r.walk.space.Pin(p.iova, uint64(p.n)); errors.Is(err, dma.ErrMiss) {
			return fmt.Errorf("%s at %#x: %w", p.name, p.iova, err) // not ErrBadRing: the ring itself may be good
		} else if err != nil {
			return fmt.Errorf("%s at %#x: %w: %w", p.name, p.iova, ErrBadRing, err)
		}
	}
	avail, used := r.pins[1].Bytes(), r.pins[2].Bytes()
	r.walk.descs = rows[[descLen]byte](r.pins[0].Bytes())
	r.avails = rows[[availElem]byte](avail[ringHeader : ringHeader+availElem*n])
	r.useds = rows[[usedElem]byte](used[ringHeader : ringHeader+usedElem*n])
	if r.used, err = headerAt(used); err != nil {
		return fmt.Errorf("used ring at %#x: %w", c.Used, err)
	}
	return fields(
		fieldPlace{&r.availFlags, avail, 0},
		fieldPlace{&r.availIdx, avail, 2},
		fieldPlace{&r.usedEvent, avail, len(avail) - 2},
		fieldPlace{&r.usedIdx, used, 2},
		fieldPlace{&r.availEvent, used, len(used) - 2})
}

func (r *splitDevice) close() {
	for i, p := range r.pins {
		if p != nil {
			p.Close()
			r.pins[i] = nil
		}
	}
	r.walk.descs, r.avails, r.useds = nil, nil, nil
}

func (r *splitDevice) start(b Base) (first pos, resumed bool) {
	r.shown = r.usedIdx.load()
	return pos(b.state), b.state != 0
}

func (r *splitDevice) base(next pos) Base { return Base{uint32(next)} }

// available reads avail.idx once. It is an error if avail.idx went back, or if the available chains and the out
// chains, which are taken and not published, are more than the ring has heads.
func (r *splitDevice) available(next pos, out int) (n int, err error) {
	idx := r.availIdx.load()
	n = int(idx - uint16(next))
	if size := int(r.mask) + 1; n+out > size {
		return 0, fmt.Errorf("%w: avail.idx went from %d to %d, ring of %d with %d in use", ErrBadChain, next, idx, size, out)
	}
	return n, nil
}

func (r *splitDevice) pending(next pos) bool { return r.availIdx.load() != uint16(next) }

// take reads the avail entry once.
func (r *splitDevice) take(p pos, c *Chain) (next pos, err error) {
	return pos(uint16(p) + 1), r.walk.walk(p, le.Uint16(r.avails[uint16(p)&r.mask][:]), c)
}

// head reads the avail entry once.
func (r *splitDevice) head(p pos) (next pos, head uint16, err error) {
	head = le.Uint16(r.avails[uint16(p)&r.mask][:])
	if head > r.mask {
		return p, head, badEntry(p, head, len(r.avails))
	}
	return pos(uint16(p) + 1), head, nil
}

func (r *splitDevice) load(head uint16, c *Chain) error { return r.walk.walk(0, head, c) }

// publish writes the used elements {id u32, len u32}, and moves used.idx behind them. The store of used.idx is
// a full barrier before the load of the driver's used_event or flags.
func (r *splitDevice) publish(es []usedElement) (call bool) {
	was := r.shown
	i := was
	for _, e := range es {
		le.PutUint64(r.useds[i&r.mask][:], uint64(e))
		i++
	}
	r.used.store(r.flags, i)
	r.shown = i
	if r.eventIdx {
		return needEvent(r.usedEvent.load(), i, was)
	}
	return r.availFlags.load()&availNoInterrupt == 0
}

// disableKick sets avail_event, with VIRTIO_F_EVENT_IDX, to the index before next, which avail.idx passes only after
// almost 65536 more chains.
func (r *splitDevice) disableKick(next pos) {
	if r.eventIdx {
		r.availEvent.store(uint16(next) - 1)
		return
	}
	r.flags = usedNoNotify
	r.used.store(r.flags, r.shown)
}

func (r *splitDevice) enableKick(next pos, n int) (more bool) {
	if r.eventIdx {
		r.availEvent.store(uint16(next) + uint16(n))
		r.fence.full()
	} else {
		r.flags = 0
		r.used.store(0, r.shown)
	}
	return int(r.availIdx.load()-uint16(next)) > n
}
