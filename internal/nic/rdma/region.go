package rdma

import (
	"fmt"
	"sort"
	"sync/atomic"
	"syscall"

	"vnic.dev/vnic/dma"
	"vnic.dev/vnic/internal/control"
)

// Numbers of bits in a key and in a queue pair's number.
const (
	keyBits = 32
	qpnBits = 24
)

// region is a memory region (MR). Its fields do not change once it is in the table and whole is set.
type region struct {
	control.MR
	whole  atomic.Bool // the MR can be used; of guest memory: all ranges are known
	memory *dma.Region // of control.MRBuffer: memory of the buffer's GPU
	base   uint64      // of control.MRBuffer: offset of the MR's first byte in memory
	ranges []piece     // of control.MRGuest: the MR's ranges of guest memory
	pages  *paged      // of control.MROnDemand; else nil
}

type piece struct {
	off  uint64 // offset in the MR
	iova uint64
	n    uint64
}

type outcome uint8

const (
	found    outcome = iota
	refused          // the key does not exist, or does not allow the access to these bytes
	faulted          // the memory is not mapped, or is gone
	awaited          // a page is missing, and the queue pair waits for it
	notToGet         // a page, or the region on demand, is unavailable
	dropped          // the memory of the packet's sender is gone: the packet counts as lost
)

// slots is a table. An entry's number has its index in the lower bits, and a tag above them.
type slots[T any] struct {
	bits  uint
	slots []atomic.Pointer[T]
	tag   uint32
	next  uint32
	count int
}

func newSlots[T any](bits uint) *slots[T] {
	return &slots[T]{bits: bits, slots: make([]atomic.Pointer[T], 1<<bits), tag: 1}
}

// free returns a number of at most limit bits for a new entry; 0: the table is full.
func (s *slots[T]) free(limit uint) uint32 {
	for range s.slots {
		i := s.next
		s.next = (s.next + 1) & (1<<s.bits - 1)
		if s.next == 0 {
			if s.tag++; s.tag >= 1<<(limit-s.bits) {
				s.tag = 1
			}
		}
		if s.slots[i].Load() == nil {
			return s.tag<<s.bits | i
		}
	}
	return 0
}

// setTag sets the tag of the next numbers from a random number.
func (s *slots[T]) setTag(limit uint, random uint32) { s.tag = 1 + random%(1<<(limit-s.bits)-1) }

func (s *slots[T]) place(number uint32) *atomic.Pointer[T] { return &s.slots[number&(1<<s.bits-1)] }

func (s *slots[T]) set(number uint32, v *T) {
	s.place(number).Store(v)
	s.count++
}

func (s *slots[T]) del(number uint32) {
	s.place(number).Store(nil)
	s.count--
}

// regionOf returns the MR of a key; nil: none.
func (e *Engine) regionOf(key uint32) *region {
	if r := e.mrs.place(key).Load(); r != nil && r.Key == key {
		return r
	}
	return nil
}

// check returns the MR of key if it can be used, its protection domain is pd and it allows the access need to
// [va, va+n); otherwise nil. check only subtracts, so no sum wraps.
func (e *Engine) check(key, pd uint32, va, n uint64, need uint8) *region {
	r := e.regionOf(key)
	if r == nil || !r.whole.Load() || r.PD != pd || r.Access&need != need || va < r.VA || va-r.VA > r.Len ||
		n > r.Len-(va-r.VA) {
		return nil
	}
	return r
}

// resolve appends the segments of [va, va+n) of an MR. If a page on demand is missing, it may request the pages of
// [va, va+ahead). The caller is inside the epochs of the Engine's users and of the Space.
func (q *qp) resolve(dst []dma.Segment, key uint32, va, n, ahead uint64, need uint8, a dma.Access) (
	[]dma.Segment, outcome) {
	if n == 0 {
		return dst, found // then the key is not checked (9.7.4.1.5)
	}
	r := q.e.check(key, q.pd, va, n, need)
	switch {
	case r == nil:
		return dst, refused
	case r.pages != nil:
		off := va - r.VA
		return r.pages.places(dst, q, off, n, min(ahead, r.Len-off), a)
	}
	return q.e.places(dst, r, va-r.VA, n, a)
}

// maxPieces bounds the segments for a packet in one scatter/gather element, or in one page on demand.
const maxPieces = 32

// places appends the segments of [off, off+n) of a region that is not on demand.
func (e *Engine) places(dst []dma.Segment, r *region, off, n uint64, a dma.Access) ([]dma.Segment, outcome) {
	if r.Kind == control.MRBuffer {
		return append(dst, r.memory.Segment(r.base+off, uint32(n))), found
	}
	i := sort.Search(len(r.ranges), func(i int) bool { return r.ranges[i].off > off }) - 1
	limit := len(dst) + maxPieces
	for ; n > 0; i++ {
		p := &r.ranges[i]
		skip := off - p.off
		k := min(n, p.n-skip)
		var err error
		if dst, err = e.c.Space.TranslateMax(dst, limit, p.iova+skip, k, a); err != nil {
			return dst, faulted
		}
		off, n = off+k, n-k
	}
	return dst, found
}

// AddMR implements control.RDMA.
func (e *Engine) AddMR(m control.MR) (uint32, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	const known = control.AccessLocalWrite | control.AccessRemoteWrite | control.AccessRemoteRead
	switch {
	case !e.pds[m.PD]:
		return 0, fmt.Errorf("mr: no protection domain %d: %w", m.PD, syscall.ENOENT)
	case m.Key != 0:
		return 0, fmt.Errorf("mr: key %#x: the NIC chooses it: %w", m.Key, syscall.EINVAL)
	case m.Access&^known != 0:
		return 0, fmt.Errorf("mr: access %#x: only %#x are known: %w", m.Access, known, syscall.EINVAL)
	case m.Len == 0 || m.VA+m.Len < m.VA:
		return 0, fmt.Errorf("mr: %d bytes at %#x: not 1 or more, up to the end of the address space: %w", m.Len, m.VA,
			syscall.EINVAL)
	case e.mrs.count == MaxMRs:
		return 0, fmt.Errorf("mr: there are %d: %w", MaxMRs, syscall.ENOSPC)
	}
	r := &region{MR: m}
	r.Ranges = nil
	var err error
	switch {
	case m.Kind != control.MRGuest && len(m.Ranges) > 0:
		err = fmt.Errorf("mr: ranges are for guest memory only: %w", syscall.EINVAL)
	case m.Kind == control.MRBuffer:
		err = e.addBuffer(r)
	case m.Kind == control.MRGuest && (m.Buffer != 0 || m.Off != 0 || m.GPU != 0):
		err = fmt.Errorf("mr of guest memory: buffer, offset and GPU are 0: %w", syscall.EINVAL)
	case m.Kind == control.MRGuest:
		err = e.addRanges(r, m.Ranges)
	case m.Kind == control.MROnDemand:
		err = e.addPaged(r)
	default:
		err = fmt.Errorf("mr: kind %d: not 1 (buffer), 2 (guest memory) or 3 (on demand): %w", m.Kind, syscall.EINVAL)
	}
	if err != nil {
		return 0, err
	}
	e.mrs.setTag(keyBits, e.random())
	r.Key = e.mrs.free(keyBits)
	if r.pages != nil {
		r.pages.key = r.Key
	}
	e.mrs.set(r.Key, r)
	return r.Key, nil
}

func (e *Engine) addBuffer(r *region) error {
	memory, off, size, ok := e.c.Buffer(r.Buffer)
	switch {
	case !ok:
		return fmt.Errorf("mr: no registered buffer %d: %w", r.Buffer, syscall.ENOENT)
	case r.GPU != 0:
		return fmt.Errorf("mr: the buffer says whose memory it is: the GPU is 0: %w", syscall.EINVAL)
	case r.Off > size || r.Len > size-r.Off:
		return fmt.Errorf("mr: %d bytes at %d of buffer %d, which has %d: %w", r.Len, r.Off, r.Buffer, size, syscall.EINVAL)
	}
	r.memory, r.base = memory, off+r.Off
	r.whole.Store(true)
	return nil
}

func (e *Engine) addRanges(r *region, ranges []control.MRRange) error {
	have := uint64(0)
	if n := len(r.ranges); n > 0 {
		have = r.ranges[n-1].off + r.ranges[n-1].n
	}
	if len(ranges) > MaxRanges-e.ranges {
		return fmt.Errorf("mr: more than %d ranges in all: %w", MaxRanges, syscall.ENOSPC)
	}
	all := r.ranges
	for _, g := range ranges {
		if g.Len == 0 || g.Len > r.Len-have || g.IOVA+g.Len < g.IOVA {
			return fmt.Errorf("mr: a range of %d bytes at %#x, where %d of %d are known: %w", g.Len, g.IOVA, have, r.Len,
				syscall.EINVAL)
		}
		all = append(all, piece{off: have, iova: g.IOVA, n: g.Len})
		have += g.Len
	}
	r.ranges = all
	e.ranges += len(ranges)
	if have == r.Len {
		r.whole.Store(true)
	}
	return nil
}

// MoreMR implements control.RDMA.
func (e *Engine) MoreMR(m control.MRMore) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	r := e.regionOf(m.Key)
	switch {
	case r == nil:
		return fmt.Errorf("mr: no key %#x: %w", m.Key, syscall.ENOENT)
	case r.Kind != control.MRGuest || r.whole.Load():
		return fmt.Errorf("mr %#x: it has all of its memory: %w", m.Key, syscall.EINVAL)
	}
	return e.addRanges(r, m.Ranges)
}

// DelMR implements control.RDMA.
func (e *Engine) DelMR(key uint32) error {
	e.mu.Lock()
	r := e.regionOf(key)
	if r == nil {
		e.mu.Unlock()
		return fmt.Errorf("mr: no key %#x: %w", key, syscall.ENOENT)
	}
	e.mrs.del(key)
	e.ranges -= len(r.ranges)
	e.mu.Unlock()
	if r.pages != nil {
		e.delPaged(r.pages)
	}
	e.users.Wait()
	return nil
}

// UsesBuffer reports whether an MR lies in the registered buffer id.
func (e *Engine) UsesBuffer(id uint32) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	for i := range e.mrs.slots {
		if r := e.mrs.slots[i].Load(); r != nil && r.Kind == control.MRBuffer && r.Buffer == id {
			return true
		}
	}
	return false
}
