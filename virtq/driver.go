package virtq

import (
	"fmt"
	"math"
)

// Buf is a piece of the driver's memory, by the device's address.
type Buf struct {
	Addr uint64
	Len  uint32
}

// DriverConfig describes a ring for NewDriver.
type DriverConfig struct {
	Size uint16
	Mem  []byte // at least Layout's total, which NewDriver clears; 16-aligned, shared with the device
	Addr uint64 // IOVA of Mem, 16-aligned
	// Indirect, if not empty, is memory for indirect tables (VIRTIO_F_INDIRECT_DESC).
	Indirect     []byte
	IndirectAddr uint64 // IOVA of Indirect
	EventIdx     bool   // VIRTIO_F_EVENT_IDX was negotiated
	// Emulated must be set if QEMU may emulate the driver's processor (index.go).
	Emulated bool
}

// Used is a chain that the device returned. Len is how many bytes the device reports to have written;
// 0 if it could write none.
type Used struct {
	Cookie uint32
	Len    uint32
}

// Driver is the driver's end of a split virtqueue.
//
// It never reads back from ring memory what it wrote there.
type Driver struct {
	ring  driverRing
	addr  [3]uint64
	err   error // sticky
	slots []slot
	next  []uint16 // by descriptor: the next one in its chain or in the free list
	free  uint16   // head of the free list
	nfree int

	tables     [][descLen]byte // perTable descriptors for each head
	tablesAddr uint64
	perTable   int

	added  uint64 // chains added; the low 16 bits are the next avail.idx
	shown  uint64 // chains published
	polled uint64 // used chains that Poll has fetched
	seen   uint16 // the value of used.idx that Poll read last
}

// slot describes a chain that is in flight: added, and not yet fetched by Poll.
type slot struct {
	seq    uint64 // how many chains were added before
	cookie uint32
	in     uint32 // bytes the device may write
	descs  uint16 // descriptors of the ring that the chain takes; 0: not in flight
}

// NewDriver makes an empty ring.
func NewDriver(c DriverConfig) (*Driver, error) {
	if err := checkSize(c.Size); err != nil {
		return nil, err
	}
	desc, avail, used, total := Layout(c.Size)
	if uint64(len(c.Mem)) < total || c.Addr > math.MaxUint64-total {
		return nil, fmt.Errorf("ring of %d at %#x: %d bytes, needs %d: %w", c.Size, c.Addr, len(c.Mem), total, ErrBadRing)
	}
	if c.Addr%descAlign != 0 || !aligned(c.Mem, descAlign) {
		return nil, fmt.Errorf("ring of %d at %#x: not %d-aligned: %w", c.Size, c.Addr, descAlign, ErrBadRing)
	}
	if c.IndirectAddr > math.MaxUint64-uint64(len(c.Indirect)) {
		return nil, fmt.Errorf("indirect memory at %#x: %d bytes: %w", c.IndirectAddr, len(c.Indirect), ErrBadRing)
	}
	d := &Driver{
		addr:       [3]uint64{c.Addr + desc, c.Addr + avail, c.Addr + used},
		slots:      make([]slot, c.Size),
		next:       make([]uint16, c.Size),
		nfree:      int(c.Size),
		tables:     rows[[descLen]byte](c.Indirect),
		tablesAddr: c.IndirectAddr,
		perTable:   min(len(c.Indirect)/descLen/int(c.Size), int(c.Size)),
	}
	for i := range d.next {
		d.next[i] = uint16(i + 1)
	}
	clear(c.Mem[:total])
	if err := d.ring.init(c.Size, c.EventIdx, c.Mem[desc:], c.Mem[avail:], c.Mem[used:]); err != nil {
		return nil, err
	}
	d.ring.emulated = c.Emulated
	return d, nil
}

// Add puts a chain into the ring, which Publish shows to the device. It returns ErrFull if too few descriptors are
// free, ErrBadBuf for a chain that can never be added.
func (d *Driver) Add(out, in []Buf, cookie uint32) error {
	n := len(out) + len(in)
	if n == 0 || n > min(len(d.slots), MaxDescriptors) {
		return fmt.Errorf("chain of %d descriptors, ring of %d, of which it may have %d: %w",
			n, len(d.slots), min(len(d.slots), MaxDescriptors), ErrBadBuf)
	}
	outLen, inLen := total(out), total(in)
	if outLen > math.MaxUint32 || inLen > math.MaxUint32-outLen {
		return fmt.Errorf("chain of %d and %d bytes: %w", outLen, inLen, ErrBadBuf)
	}
	head, descs := d.free, n
	indirect := n > 1 && n <= d.perTable
	if indirect {
		descs = 1
	}
	if descs > d.nfree {
		return ErrFull
	}
	if indirect {
		d.addTable(head, out, in)
		d.free = d.next[head]
	} else {
		d.addDirect(out, in)
	}
	d.nfree -= descs
	d.slots[head] = slot{seq: d.added, cookie: cookie, in: uint32(inLen), descs: uint16(descs)}
	d.ring.put(uint16(d.added), head)
	d.added++
	return nil
}

func total(bufs []Buf) (n uint64) {
	for i := range bufs {
		n += uint64(bufs[i].Len)
	}
	return n
}

// addDirect writes the chain into free descriptors. Enough must be free.
func (d *Driver) addDirect(out, in []Buf) {
	left := len(out) + len(in)
	put := func(bufs []Buf, flags uint16) {
		for _, b := range bufs {
			i := d.free
			left--
			e := desc{addr: b.Addr, len: b.Len, flags: flags}
			if left > 0 {
				e.flags |= flagNext
				e.next = d.next[i]
			}
			e.encode(&d.ring.descs[i])
			d.free = d.next[i]
		}
	}
	put(out, 0)
	put(in, flagWrite)
}

// addTable writes the chain into the head's indirect table (2.7.5.3), and makes the head's descriptor refer to it.
func (d *Driver) addTable(head uint16, out, in []Buf) {
	n := len(out) + len(in)
	first := int(head) * d.perTable
	table := d.tables[first : first+n]
	i := 0
	put := func(bufs []Buf, flags uint16) {
		for _, b := range bufs {
			e := desc{addr: b.Addr, len: b.Len, flags: flags}
			if i < n-1 {
				e.flags |= flagNext
				e.next = uint16(i + 1)
			}
			e.encode(&table[i])
			i++
		}
	}
	put(out, 0)
	put(in, flagWrite)
	e := desc{addr: d.tablesAddr + uint64(first*descLen), len: uint32(n * descLen), flags: flagIndirect}
	e.encode(&d.ring.descs[head])
}

// Publish shows the added chains to the device, and reports whether the device wants a kick.
func (d *Driver) Publish() (kick bool) {
	if d.added == d.shown {
		return false
	}
	kick = d.ring.publish(uint16(d.added), uint16(d.shown))
	d.shown = d.added
	return kick
}

// Poll fetches up to len(dst) chains that the device returned. If the used ring is invalid, it returns
// ErrBadUsed with the n good chains before, and later calls return that error too.
func (d *Driver) Poll(dst []Used) (n int, err error) {
	if d.err != nil {
		return 0, d.err
	}
	for ; n < len(dst); n++ {
		last := uint16(d.polled)
		if last == d.seen {
			d.seen = d.ring.used()
			if last == d.seen {
				break
			}
			if inFlight := d.shown - d.polled; uint64(d.seen-last) > inFlight {
				d.err = fmt.Errorf("%w: used.idx went from %d to %d, in flight %d", ErrBadUsed, last, d.seen, inFlight)
				return n, d.err
			}
		}
		if dst[n], err = d.take(last); err != nil {
			d.err = err
			return n, err
		}
		d.polled++
	}
	return n, nil
}

func (d *Driver) take(i uint16) (Used, error) {
	id, n := d.ring.element(i)
	if id >= uint32(len(d.slots)) {
		return Used{}, fmt.Errorf("%w: element %d: id %d of %d", ErrBadUsed, i, id, len(d.slots))
	}
	s := &d.slots[id]
	if s.descs == 0 || s.seq >= d.shown {
		return Used{}, fmt.Errorf("%w: element %d: id %d is not in flight", ErrBadUsed, i, id)
	}
	switch {
	case s.in == 0:
		n = 0 // some devices write a length for a chain that they can only read
	case n > s.in:
		return Used{}, fmt.Errorf("%w: element %d: id %d: wrote %d bytes into %d", ErrBadUsed, i, id, n, s.in)
	}
	last := uint16(id)
	for range s.descs - 1 {
		last = d.next[last]
	}
	d.next[last] = d.free
	d.free = uint16(id)
	d.nfree += int(s.descs)
	s.descs = 0
	return Used{Cookie: s.cookie, Len: n}, nil
}

// DisableCall tells the device that the driver needs no call; one may still come.
func (d *Driver) DisableCall() { d.ring.disableCall(uint16(d.shown), uint16(d.polled)) }

// EnableCall asks the device for a call at the next used chain. If it returns true, the owner must poll before
// it sleeps.
func (d *Driver) EnableCall() (more bool) {
	return d.ring.enableCall(uint16(d.shown), uint16(d.polled))
}

// Free returns how many descriptors are free.
func (d *Driver) Free() int { return d.nfree }

// Size returns the ring's size.
func (d *Driver) Size() uint16 { return uint16(len(d.slots)) }

// Err returns the error that stopped the queue, or nil.
func (d *Driver) Err() error { return d.err }

// Addrs returns the device's addresses of the ring's three parts.
func (d *Driver) Addrs() (desc, avail, used uint64) { return d.addr[0], d.addr[1], d.addr[2] }
