package kernel

import (
	"errors"
	"fmt"
	"iter"
	"slices"
	"sync/atomic"
	"syscall"
	"time"

	"vnic.dev/vnic/devmem"
	"vnic.dev/vnic/internal/devmembase"
	"vnic.dev/vnic/internal/diagnosis"
)

// minPages is the least number of pages for each queue of a receive binding: drivers post buffers in batches (gve:
// of 32), so a queue with too few pages may never receive.
const minPages = 64

type binding struct {
	d    *Device
	id   uint32
	tx   bool
	buf  *buffer
	mem  *dmabuf
	nl   *genl // closing this socket makes the kernel end the binding
	done chan struct{}

	closed atomic.Bool // written under d.mu

	// Fields of a receive binding.
	queues []int
	held   atomic.Int64 // recorded tokens that users hold (tokens.go)

	// Fields of a transmit binding.
	base  uint64       // added to the offsets of sent ranges; 0 except in tests
	host  bool         // for tests: sends take host memory, and name no binding to the kernel
	sends atomic.Int64 // incomplete calls of SendDevmem that queued a byte
}

func (b *binding) ID() uint32            { return b.id }
func (b *binding) Done() <-chan struct{} { return b.done }

// Close implements devmem.Binding.
func (b *binding) Close() error {
	b.d.mu.Lock()
	defer b.d.mu.Unlock()
	return b.close()
}

func (b *binding) close() error {
	if b.closed.Swap(true) {
		return nil
	}
	err := b.nl.Close() // before this returns, the kernel gives a receive binding's queues host memory
	if !b.tx {
		b.d.runQueued()
	}
	b.d.work.Go(b.watch)
	if err != nil {
		return fmt.Errorf("%s: binding %d: close: %w", b.d.name, b.id, err)
	}
	return nil
}

// Limits of the pause between two checks whether a closed binding's memory is still in use; no event reports that it
// is not.
const (
	minPoll = time.Millisecond
	maxPoll = 50 * time.Millisecond
)

// watch makes the closed binding done when its memory is no longer in use, or returns before if the Device's Close
// gives up. Packets that have waited since a queue was restarted may use the memory, so watch calls runQueued at
// intervals of flushTime.
func (b *binding) watch() {
	pause := minPoll
	long := time.NewTicker(flushTime.Here())
	defer long.Stop()
	t := time.NewTimer(0)
	defer t.Stop()
	for {
		select {
		case <-b.d.giveUp:
			return
		case <-long.C:
			b.d.runQueued()
			continue
		case <-t.C:
		}
		// The kernel's binding has a reference to the dma-buf until it is freed
		// (net/core/devmem.c:__net_devmem_dmabuf_binding_free).
		if n, err := b.d.refs(b.mem.fd); err == nil && n <= b.mem.refs {
			break
		}
		t.Reset(pause)
		pause = min(2*pause, maxPoll)
	}
	b.d.mu.Lock()
	defer b.d.mu.Unlock()
	b.d.binds.Delete(b.id)
	b.putBack()
	close(b.done)
}

// runQueued tries to make the interface send packets, of any process, that wait there (kick.go).
func (d *Device) runQueued() {
	switch n, err := d.kick(); {
	case err != nil:
		d.log.Warn("packets that wait to be sent may go on waiting", "interface", d.name, "err", err)
	case n > 0:
		d.log.Info("packets waited at transmit queues, and were sent", "interface", d.name, "queues", n)
	}
}

// putBack keeps the dma-buf for a later binding of the buffer. It closes the dma-buf if the buffer has one already, or
// is closed. The caller holds d.mu.
func (b *binding) putBack() {
	if b.buf.spare == nil && !b.buf.closed {
		b.buf.spare = b.mem
	} else if err := b.mem.close(); err != nil {
		b.d.log.Warn("close of a dma-buf", "interface", b.d.name, "binding", b.id, "err", err)
	}
}

func (d *Device) bindings() iter.Seq[*binding] {
	return func(yield func(*binding) bool) {
		d.binds.Range(func(_, b any) bool { return yield(b.(*binding)) })
	}
}

// rxBinding returns the receive binding with an id, which may be closed, or foreignBinding if this Device has none.
func (d *Device) rxBinding(id uint32) *binding {
	if v, ok := d.binds.Load(id); ok && !v.(*binding).tx {
		return v.(*binding)
	}
	return foreignBinding
}

// txBinding returns the open transmit binding with an id, or nil.
func (d *Device) txBinding(id uint32) *binding {
	v, ok := d.binds.Load(id)
	if b, _ := v.(*binding); ok && b.tx && !b.closed.Load() {
		return b
	}
	return nil
}

// bind calls check, and if that returns nil makes a binding of a buffer by a netlink command. The caller holds d.mu.
func (d *Device) bind(b devmem.Buffer, cmd uint8, queues []int, check func(*buffer) error) (*binding, error) {
	if err := d.use(); err != nil {
		return nil, err
	}
	buf, err := d.buffer(b)
	if err != nil {
		return nil, err
	}
	if err := check(buf); err != nil {
		return nil, err
	}
	bound := &binding{d: d, tx: cmd == cmdBindTx, buf: buf, queues: queues, done: make(chan struct{})}
	if bound.mem, err = buf.take(); err != nil {
		return nil, err
	}
	if bound.nl, err = d.dial.open(netdevFamily); err == nil {
		if bound.id, err = bound.nl.bind(cmd, d.index, bound.mem.fd, queues); err == nil {
			d.binds.Store(bound.id, bound)
			return bound, nil
		}
		err = errors.Join(err, bound.nl.Close())
	}
	bound.putBack()
	return nil, err
}

func (d *Device) buffer(b devmem.Buffer) (*buffer, error) {
	buf, ok := b.(*buffer)
	if !ok || buf.d != d || buf.closed {
		return nil, fmt.Errorf("no such buffer: %w", syscall.EBADF)
	}
	return buf, nil
}

// BindRX implements devmem.Device. If the buffer and queues can be bound, it turns the interface's header split on,
// unless an earlier call has.
func (d *Device) BindRX(buf devmem.Buffer, queues ...int) (devmem.Binding, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	restarts := false
	defer func() {
		if restarts { // also if enableSplit or the bind has failed
			d.runQueued()
		}
	}()
	each := slices.Compact(slices.Sorted(slices.Values(queues)))
	b, err := d.bind(buf, cmdBindRx, each, func(buf *buffer) error {
		if err := d.checkBind(buf, each); err != nil {
			return err
		}
		restarts = true
		return devmembase.Named("turn tcp-data-split on", d.enableSplit())
	})
	if err != nil {
		return nil, fmt.Errorf("%s: bind rx queues %s: %w", d.name, diagnosis.Numbers(queues), err)
	}
	return b, nil
}

// BindTX implements devmem.Device.
func (d *Device) BindTX(buf devmem.Buffer) (devmem.Binding, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	b, err := d.bind(buf, cmdBindTx, nil, func(*buffer) error { return nil })
	if err != nil {
		return nil, fmt.Errorf("%s: bind tx: %w", d.name, err)
	}
	return b, nil
}

// checkBind returns the errors of devmem.Device.BindRX for queues that cannot be bound and for the buffer's memory.
// Linux would allow some of these bindings, or refuse them with another error. The caller holds d.mu.
func (d *Device) checkBind(buf *buffer, queues []int) error {
	n, err := d.queues()
	if err != nil && len(queues) > 0 {
		return err
	}
	all := d.allBindings()
	bound := func(q int) bool {
		return slices.ContainsFunc(all, func(o diagnosis.Binding) bool { return !o.Closed && slices.Contains(o.Queues, q) })
	}
	if err := devmembase.CheckQueues(queues, n, bound); err != nil {
		return err
	}
	return buf.CheckRX(len(queues), minPages, all)
}

// enableSplit makes the interface's queues split headers from payload, in packets of any size, unless an earlier call
// has. It sets the split even if the kernel reports it as on: a bind needs it to be configured as on, while the report
// may be of the driver's choice.
func (d *Device) enableSplit() error {
	if d.undo.rings != nil {
		return nil
	}
	was, err := d.ethtool.getRings(d.index)
	if err != nil {
		return err
	}
	if err := d.ethtool.setRings(d.index, rings{split: splitOn, hasThresh: was.hasThresh}); err != nil {
		return err
	}
	d.undo.rings = &was
	return nil
}

var (
	_ devmem.Buffer  = (*buffer)(nil)
	_ devmem.Binding = (*binding)(nil)
)
