package plain

import (
	"fmt"
	"slices"
	"sync"
	"syscall"

	"vnic.dev/vnic/devmem"
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
		return devmembase.InUse(b, b.d.allBindings())
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

	mu     sync.Mutex
	closed bool
	gone   bool
	// Receive: the free pages; for each page, how many queued chunks and how many tokens hold it.
	free         []uint32
	queued, held []uint32
	nq, nh       int           // pages in connections' queues; pages that only tokens hold
	room         chan struct{} // closed when pages become free, or the binding is closed; nil: no reader waits
	sends        int           // transmit: calls of SendDevmem in progress
}

// bind makes a binding of a buffer, without pages. Under d.mu.
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
	if x, ok := b.(*buffer); ok && !x.closed {
		if err := x.CheckRX(len(queues), minPages, d.allBindings()); err != nil {
			return nil, fmt.Errorf("bind: %w", err)
		}
	}
	x, err := d.bind(b, false, queues)
	if err != nil {
		return nil, err
	}
	pages := x.buf.Pages()
	x.queued, x.held = make([]uint32, pages), make([]uint32, pages)
	for i := range pages {
		x.free = append(x.free, uint32(pages-1-i))
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
	b.closed = true
	b.wake()
	b.mu.Unlock()
	b.settle()
	return nil
}

// wake wakes the readers that wait for pages. Under b.mu.
func (b *binding) wake() {
	if b.room != nil {
		close(b.room)
		b.room = nil
	}
}

// settle ends the binding if it is closed and nothing uses its memory.
func (b *binding) settle() {
	b.d.mu.Lock()
	defer b.d.mu.Unlock()
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed && !b.gone && b.nq == 0 && b.nh == 0 && b.sends == 0 {
		b.gone = true
		b.buf.bound--
		delete(b.d.bindings, b.id)
		close(b.done)
	}
}

// take returns up to n pages for payload. If none is free, it returns a channel to wait for; closed
// means that the binding is closed.
func (b *binding) take(pages []uint32, n int) (got []uint32, room <-chan struct{}, closed bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return pages, nil, true
	}
	if len(b.free) == 0 {
		if b.room == nil {
			b.room = make(chan struct{})
		}
		return pages, b.room, false
	}
	for range min(n, len(b.free)) {
		k := len(b.free) - 1
		pages = append(pages, b.free[k])
		b.queued[b.free[k]]++
		b.free = b.free[:k]
		b.nq++
	}
	return pages, nil, false
}

// page returns a page's memory.
func (b *binding) page(i uint32) []byte { return b.buf.mem[int(i)*devmem.PageSize:][:devmem.PageSize] }

// hold adds a token's reference to a page.
func (b *binding) hold(i uint32) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.held[i]++; b.held[i] == 1 && b.queued[i] == 0 {
		b.nh++
	}
}

// unhold drops a token's reference to a page, unqueue drops a queue's.
func (b *binding) unhold(i uint32) { b.drop(i, b.held, b.queued, &b.nh) }

func (b *binding) unqueue(i uint32) { b.drop(i, b.queued, b.held, &b.nq) }

func (b *binding) drop(i uint32, from, other []uint32, n *int) {
	b.mu.Lock()
	from[i]--
	switch {
	case from[i] > 0:
	case other[i] > 0 && n == &b.nq: // only tokens hold it now
		b.nq--
		b.nh++
	case other[i] > 0: // the page is still in a queue
	default:
		*n--
		b.free = append(b.free, i)
		b.wake()
	}
	idle := b.closed && b.nq == 0 && b.nh == 0
	b.mu.Unlock()
	if idle {
		b.settle()
	}
}

// facts returns the binding and its counters. Under d.mu.
func (b *binding) facts() diagnosis.Binding {
	b.mu.Lock()
	defer b.mu.Unlock()
	return diagnosis.Binding{Buffer: b.buf, Queues: b.queues, BindingStats: devmem.BindingStats{
		ID: b.id, TX: b.tx, Closed: b.closed, Pages: b.buf.Pages(),
		Posted: len(b.free), Queued: b.nq, Held: b.nh, Sends: b.sends}}
}
