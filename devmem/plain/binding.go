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

type buffer struct {
	devmembase.Region
	d   *Device
	mem []byte

	closed bool // protected by d.mu
}

// Close implements devmem.Buffer.
func (b *buffer) Close() error {
	b.d.mu.Lock()
	defer b.d.mu.Unlock()
	if err := devmembase.InUse(b, b.d.allBindings()); err != nil {
		return err
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

type binding struct {
	d      *Device
	id     uint32
	buf    *buffer
	tx     bool
	queues []int
	done   chan struct{}

	mu     sync.Mutex
	closed bool
	// For a transmit binding the next three fields are nil. free has the numbers of the free pages. queued[p] is 1
	// from take of page p until unqueue, else 0; held[p] is how many tokens refer to page p.
	free         []uint32
	queued, held []uint32
	room         chan struct{} // returned by take if no page is free; wake closes it, and sets room to nil
	sends        int           // calls of SendDevmem in progress; 0 for a receive binding
}

// buffer returns b as a *buffer, or an error if d or b is closed or b is another device's. The caller holds d.mu.
func (d *Device) buffer(b devmem.Buffer) (*buffer, error) {
	if err := d.use(); err != nil {
		return nil, err
	}
	x, ok := b.(*buffer)
	switch {
	case !ok || x.d != d:
		return nil, fmt.Errorf("bind: the buffer is another device's: %w", syscall.EINVAL)
	case x.closed:
		return nil, fmt.Errorf("bind: the buffer is closed: %w", syscall.EBADF)
	}
	return x, nil
}

// bind makes a binding of b, and adds it to the device's bindings. The caller holds b.d.mu.
func (b *buffer) bind(tx bool, queues []int) *binding {
	d := b.d
	d.lastID++
	n := &binding{d: d, id: d.lastID, buf: b, tx: tx, queues: queues, done: make(chan struct{})}
	d.bindings[n.id] = n
	return n
}

// BindTX implements devmem.Device.
func (d *Device) BindTX(b devmem.Buffer) (devmem.Binding, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	x, err := d.buffer(b)
	if err != nil {
		return nil, err
	}
	return x.bind(true, nil), nil
}

// BindRX implements devmem.Device.
func (d *Device) BindRX(b devmem.Buffer, queues ...int) (devmem.Binding, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	buf, err := d.buffer(b)
	if err != nil {
		return nil, err
	}
	queues = slices.Compact(slices.Sorted(slices.Values(queues)))
	bound := func(q int) bool { return d.queues[q] != nil }
	if err := devmembase.CheckQueues(queues, len(d.queues), bound); err != nil {
		return nil, fmt.Errorf("bind: %w", err)
	}
	if err := buf.CheckRX(len(queues), minPages, d.allBindings()); err != nil {
		return nil, fmt.Errorf("bind: %w", err)
	}
	x := buf.bind(false, queues)
	pages := buf.Pages()
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
	b.unlock()
	return nil
}

// wake wakes the callers of take that wait for pages. The caller holds b.mu.
func (b *binding) wake() {
	if b.room != nil {
		close(b.room)
		b.room = nil
	}
}

// unlock unlocks b.mu. If the binding is closed, and no page and no send is in use, unlock then locks b.d.mu,
// removes the binding from the device and closes done.
func (b *binding) unlock() {
	idle := b.closed && len(b.free) == len(b.queued) && b.sends == 0
	b.mu.Unlock()
	if !idle {
		return
	}
	b.d.mu.Lock()
	defer b.d.mu.Unlock()
	if b.d.bindings[b.id] == b {
		delete(b.d.bindings, b.id)
		close(b.done)
	}
}

// take returns up to n free pages, and counts them in queued. If no page is free, it returns a channel that is
// closed when a page becomes free or the binding is closed; if the binding is closed already, nil and nil.
func (b *binding) take(n int) (pages []uint32, room <-chan struct{}) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case b.closed:
		return nil, nil
	case len(b.free) == 0:
		if b.room == nil {
			b.room = make(chan struct{})
		}
		return nil, b.room
	}
	k := max(len(b.free)-n, 0)
	pages, b.free = slices.Clone(b.free[k:]), b.free[:k]
	slices.Reverse(pages) // as from a stack: the end of free first
	for _, p := range pages {
		b.queued[p]++
	}
	return pages, nil
}

func (b *binding) page(i uint32) []byte { return b.buf.mem[int(i)*devmem.PageSize:][:devmem.PageSize] }

func (b *binding) hold(i uint32) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.held[i]++
}

// unhold drops a token's reference to page i. unqueue drops the reference that take has made.
func (b *binding) unhold(i uint32) { b.drop(i, b.held) }

func (b *binding) unqueue(i uint32) { b.drop(i, b.queued) }

func (b *binding) drop(i uint32, refs []uint32) {
	b.mu.Lock()
	defer b.unlock()
	if refs[i]--; b.queued[i] == 0 && b.held[i] == 0 {
		b.free = append(b.free, i)
		b.wake()
	}
}

// facts returns the binding's buffer, queues and statistics. It locks b.mu.
func (b *binding) facts() diagnosis.Binding {
	b.mu.Lock()
	defer b.mu.Unlock()
	s := devmem.BindingStats{ID: b.id, TX: b.tx, Closed: b.closed, Pages: b.buf.Pages(), Posted: len(b.free),
		Sends: b.sends}
	for i := range b.queued {
		if b.queued[i] > 0 {
			s.Queued++
		} else if b.held[i] > 0 {
			s.Held++
		}
	}
	return diagnosis.Binding{Buffer: b.buf, Queues: b.queues, BindingStats: s}
}
