package plain

import (
	"fmt"
	"slices"
	"sync"
	"syscall"

	"vnic.dev/vnic/devmem"
	"vnic.dev/vnic/gpumem"
	"vnic.dev/vnic/internal/devmembase"
	"vnic.dev/vnic/internal/diagnosis"
)

// buffer is a devmem.Buffer.
type buffer struct {
	devmembase.Region
	d   *Device
	mem []byte

	bound  int // under d.mu
	closed bool
}

// Close implements devmem.Buffer.
func (b *buffer) Close() error {
	b.d.mu.Lock()
	defer b.d.mu.Unlock()
	if b.bound > 0 {
		return b.InUse(b.d.bindingStats(func(o *binding) bool { return o.buf == b }))
	}
	b.closed = true
	return nil
}

// Register implements devmem.Device.
func (d *Device) Register(gpu int, off, size uint64) (devmem.Buffer, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.use(); err != nil {
		return nil, err
	}
	region, err := devmembase.NewRegion(gpu, off, size)
	switch {
	case err != nil:
	case gpu < 0 || gpu >= len(d.gpus):
		err = fmt.Errorf("there are %d: %w", len(d.gpus), syscall.ENODEV)
	case off > d.gpus[gpu].Size() || size > d.gpus[gpu].Size()-off:
		err = fmt.Errorf("%s: %w", diagnosis.PastEnd(d.gpus[gpu].Size()), syscall.EINVAL)
	}
	if err != nil {
		return nil, fmt.Errorf("register %#x+%#x of gpu %d: %w", off, size, gpu, err)
	}
	return &buffer{Region: region, d: d, mem: d.gpus[gpu].Bytes()[off : off+size : off+size]}, nil
}

// binding is a devmem.Binding.
type binding struct {
	d      *Device
	id     uint32
	buf    *buffer
	tx     bool
	queues []int
	done   chan struct{}

	pool *gpumem.Pool // of a receive binding: the queues and tokens of connections refer to its pages

	mu     sync.Mutex
	closed bool
	room   chan struct{} // closed when pages become free, or the binding is closed; nil: no reader waits
	sends  int           // transmit: 1 until Close, and 1 for each send in progress
}

// bind makes a binding. Under d.mu.
func (d *Device) bind(b devmem.Buffer, tx bool, queues []int) (*binding, error) {
	x, ok := b.(*buffer)
	if !ok || x.d != d {
		return nil, fmt.Errorf("bind: the buffer is another device's: %w", syscall.EINVAL)
	}
	if x.closed {
		return nil, fmt.Errorf("bind: the buffer is closed: %w", syscall.EBADF)
	}
	d.lastID++
	n := &binding{d: d, id: d.lastID, buf: x, tx: tx, queues: queues, done: make(chan struct{})}
	x.bound++
	d.bindings[n.id] = n
	return n, nil
}

// BindTX implements devmem.Device.
func (d *Device) BindTX(b devmem.Buffer) (devmem.Binding, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.use(); err != nil {
		return nil, err
	}
	x, err := d.bind(b, true, nil)
	if err != nil {
		return nil, err
	}
	x.sends = 1
	return x, nil
}

// BindRX implements devmem.Device.
func (d *Device) BindRX(b devmem.Buffer, queues ...int) (devmem.Binding, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.use(); err != nil {
		return nil, err
	}
	queues = slices.Compact(slices.Sorted(slices.Values(queues)))
	bound := func(q int) bool { return d.queues[q] != nil }
	if err := devmembase.CheckQueues(queues, len(d.queues), bound); err != nil {
		return nil, fmt.Errorf("bind: %w", err)
	}
	memory := map[uint32]*devmembase.Region{}
	for id, o := range d.bindings {
		if !o.tx {
			memory[id] = &o.buf.Region
		}
	}
	if x, ok := b.(*buffer); ok && !x.closed {
		if err := x.CheckRX(len(queues), minPages, memory); err != nil {
			return nil, fmt.Errorf("bind: %w", err)
		}
	}
	x, err := d.bind(b, false, queues)
	if err != nil {
		return nil, err
	}
	wake := func(int) { x.wake() }
	if x.pool, err = gpumem.NewPool(x.buf.GPU(), x.buf.Offset(), x.buf.Size(), wake, x.ended); err != nil {
		x.buf.bound--
		delete(d.bindings, x.id)
		return nil, err
	}
	for _, q := range queues {
		d.queues[q] = x
	}
	return x, nil
}

// ID implements devmem.Binding.
func (b *binding) ID() uint32 { return b.id }

// Done implements devmem.Binding.
func (b *binding) Done() <-chan struct{} { return b.done }

// Close implements devmem.Binding.
func (b *binding) Close() error {
	b.d.mu.Lock()
	for _, q := range b.queues {
		if b.d.queues[q] == b {
			b.d.queues[q] = nil
		}
	}
	b.d.mu.Unlock()
	b.mu.Lock()
	first := !b.closed
	b.closed = true
	b.mu.Unlock()
	switch {
	case !first:
	case b.tx:
		b.end()
	default:
		b.wake()
		b.pool.Close(false) // a reader may still write to pages that it took
	}
	return nil
}

// wake wakes the readers that wait for pages.
func (b *binding) wake() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.room != nil {
		close(b.room)
		b.room = nil
	}
}

// ended ends a closed binding whose memory nothing uses.
func (b *binding) ended() {
	b.d.mu.Lock()
	defer b.d.mu.Unlock()
	b.buf.bound--
	delete(b.d.bindings, b.id)
	close(b.done)
}

// take takes free pages for payload, writes their offsets in the GPU to dst, and returns how many it
// took. If none is free, it returns a channel to wait for; closed means that the binding is closed.
func (b *binding) take(dst []uint64) (n int, room <-chan struct{}, closed bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return 0, nil, true
	}
	if n = b.pool.TakePages(0, dst); n > 0 {
		return n, nil, false
	}
	if b.room == nil {
		b.room = make(chan struct{})
	}
	return 0, b.room, false
}

// page returns the memory of a page, by its offset in the GPU.
func (b *binding) page(off uint64) []byte { return b.buf.mem[off-b.buf.Offset():][:devmem.PageSize] }

// received returns the n bytes that were read into pages as chunks, and frees the pages that are
// not used.
func (b *binding) received(pages []uint64, n int) (list []chunk) {
	var used, unused []gpumem.Range
	for i, off := range pages {
		r := gpumem.Range{GPU: b.buf.GPU(), Off: off, Len: uint32(min(max(n-i*devmem.PageSize, 0), devmem.PageSize))}
		if r.Len > 0 {
			used = append(used, r)
		} else {
			unused = append(unused, r)
		}
	}
	pieces, _ := b.pool.Receive(nil, used, n) // the pages are the pool's
	for _, p := range pieces {
		list = append(list, chunk{b: b, page: p.Page, n: int(p.Len)})
	}
	b.pool.Discard(unused)
	return list
}

// release drops the queue's reference to a page.
func (b *binding) release(page uint32) { b.pool.Release([]gpumem.Piece{{Page: page}}) }

// stats returns the binding's counters. Under d.mu.
func (b *binding) stats() devmem.BindingStats {
	b.mu.Lock()
	defer b.mu.Unlock()
	s := devmem.BindingStats{ID: b.id, TX: b.tx, Closed: b.closed, Pages: b.buf.Pages()}
	if !b.tx {
		p := b.pool.Stats()
		s.Posted, s.Queued, s.Held = p.Free+p.Posted, p.Queued, p.Held
	} else if s.Sends = b.sends; !b.closed {
		s.Sends--
	}
	return s
}
