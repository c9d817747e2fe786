package kernel

import (
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"syscall"
	"time"

	"vnic.dev/vnic/devmem"
)

// minPages is how many pages a bound queue needs. Drivers tell the NIC of buffers in batches (gve: of 32), so a queue
// that gets fewer never receives; Linux binds it all the same.
const minPages = 64

// binding is what receive and transmit bindings share.
type binding struct {
	d    *Device
	id   uint32
	buf  *buffer
	mem  *dmabuf
	nl   *genl // the kernel ends the binding when this socket is closed
	done chan struct{}

	forget func()      // takes it off the device's list
	closed atomic.Bool // written under d.mu
}

// rxBinding is a buffer bound for receive.
type rxBinding struct {
	binding
	queues []int
	held   atomic.Int64 // tokens
}

// txBinding is a buffer bound for transmit.
type txBinding struct {
	binding
	base  uint64       // what offsets are added to: 0
	host  bool         // for tests: the memory is the host's, base its address, and the kernel knows of no binding
	sends atomic.Int64 // that are not complete
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
	err := b.nl.Close() // the kernel gives the queues host memory before this returns
	b.d.work.Go(b.watch)
	if err != nil {
		return fmt.Errorf("%s: binding %d: close: %w", b.d.name, b.id, err)
	}
	return nil
}

// How often the kernel is asked whether a closed binding's memory is in use: nothing tells when that ends.
const (
	firstLook = time.Millisecond
	slowLook  = 50 * time.Millisecond
)

// watch waits until the memory is out of use, or the device gives up.
func (b *binding) watch() {
	pause := firstLook
	late := b.d.late
	t := time.NewTimer(0)
	defer t.Stop()
	for {
		select {
		case <-b.d.giveUp:
			return
		case <-late:
			late = nil
			b.d.dropQueued()
			continue
		case <-t.C:
		}
		used, err := b.mem.inUse(b.d.refs)
		if err == nil && !used {
			break
		}
		t.Reset(pause)
		pause = min(2*pause, slowLook)
	}
	b.d.mu.Lock()
	defer b.d.mu.Unlock()
	b.forget()
	b.buf.bound--
	b.putBack()
	close(b.done)
}

// dropQueued drops, once, what the interface has not sent.
func (d *Device) dropQueued() {
	d.flushed.Do(func() {
		if err := d.flush(); err != nil {
			d.log.Warn("memory is still in use, and packets that wait to be sent cannot be dropped", "interface", d.name, "err",
				err)
		}
	})
}

// putBack gives the dma-buf back to its buffer.
func (b *binding) putBack() {
	if b.buf.spare == nil && !b.buf.closed {
		b.buf.spare = b.mem
	} else if err := b.mem.close(); err != nil {
		b.d.log.Warn("close of a dma-buf", "interface", b.d.name, "binding", b.id, "err", err)
	}
}

// rxBinding finds the binding of a token; it may be closed.
func (d *Device) rxBinding(id uint32) *rxBinding {
	if v, ok := d.rxBinds.Load(id); ok {
		return v.(*rxBinding)
	}
	return stray
}

// txBinding finds the binding of a send; nil if there is none, or it is closed.
func (d *Device) txBinding(id uint32) *txBinding {
	v, ok := d.txBinds.Load(id)
	if !ok {
		return nil
	}
	if b := v.(*txBinding); !b.closed.Load() {
		return b
	}
	return nil
}

// open opens what a binding needs; bind has the kernel make it.
func (b *binding) open(d *Device, buf *buffer, bind func(g *genl, fd int) (uint32, error)) error {
	b.d, b.buf, b.done = d, buf, make(chan struct{})
	var err error
	if b.mem, err = buf.take(); err != nil {
		return err
	}
	if b.nl, err = d.dial.open(netdevFamily); err == nil {
		if b.id, err = bind(b.nl, b.mem.fd); err == nil {
			buf.bound++
			return nil
		}
		err = errors.Join(err, b.nl.Close())
	}
	b.putBack()
	return err
}

// buffer checks that a buffer is one of ours.
func (d *Device) buffer(b devmem.Buffer) (*buffer, error) {
	buf, ok := b.(*buffer)
	if !ok || buf.d != d || buf.closed {
		return nil, fmt.Errorf("no such buffer: %w", syscall.EBADF)
	}
	return buf, nil
}

// BindRX implements devmem.Device. It turns header split on.
func (d *Device) BindRX(buf devmem.Buffer, queues ...int) (devmem.Binding, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	b, err := d.bindRX(buf, slices.Compact(slices.Sorted(slices.Values(queues))))
	if err != nil {
		return nil, fmt.Errorf("%s: bind rx queues %v: %w", d.name, queues, err)
	}
	return b, nil
}

func (d *Device) bindRX(b devmem.Buffer, queues []int) (*rxBinding, error) {
	if err := d.use(); err != nil {
		return nil, err
	}
	buf, err := d.buffer(b)
	if err != nil {
		return nil, err
	}
	if err := d.mayBind(buf, queues); err != nil {
		return nil, err
	}
	if err := d.enableSplit(); err != nil {
		return nil, fmt.Errorf("turn tcp-data-split on: %w", err)
	}
	rx := &rxBinding{queues: queues}
	rx.forget = func() { d.rxBinds.Delete(rx.id) }
	if err := rx.open(d, buf, func(g *genl, fd int) (uint32, error) { return g.bindRX(d.index, fd, queues) }); err != nil {
		return nil, err
	}
	d.rxBinds.Store(rx.id, rx)
	return rx, nil
}

// mayBind refuses what the API refuses; what else the kernel has against it, it says itself.
func (d *Device) mayBind(buf *buffer, queues []int) error {
	n, err := d.queues()
	switch {
	case len(queues) == 0:
		return fmt.Errorf("no queue: %w", syscall.EINVAL)
	case err != nil:
		return err
	}
	for _, q := range queues {
		switch {
		case q < 0 || q >= n:
			return fmt.Errorf("queue %d of %d: %w", q, n, syscall.EINVAL)
		case q == 0:
			return fmt.Errorf("queue 0 is for what cannot be split: %w", syscall.ERANGE)
		}
	}
	d.rxBinds.Range(func(_, v any) bool {
		o := v.(*rxBinding)
		for _, q := range queues {
			if !o.closed.Load() && slices.Contains(o.queues, q) {
				err = fmt.Errorf("queue %d is bound: %w", q, syscall.EEXIST)
				return false
			}
		}
		if o.buf.gpu == buf.gpu && buf.off < o.buf.off+o.buf.size && o.buf.off < buf.off+buf.size {
			err = fmt.Errorf("binding %d receives into the same memory: %w", o.id, syscall.EBUSY)
		}
		return true
	})
	if err != nil {
		return err
	}
	if pages := buf.size / devmem.PageSize; pages < minPages*uint64(len(queues)) {
		return fmt.Errorf("%d pages, %d needed for each queue: %w", pages, minPages, syscall.ENOSPC)
	}
	return nil
}

// enableSplit has all queues split headers from payload, at any size. What rings-get says may be what the driver does;
// the kernel's check is of what it was told, so it is always told.
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

// BindTX implements devmem.Device.
func (d *Device) BindTX(buf devmem.Buffer) (devmem.Binding, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	b, err := d.bindTX(buf)
	if err != nil {
		return nil, fmt.Errorf("%s: bind tx: %w", d.name, err)
	}
	return b, nil
}

func (d *Device) bindTX(b devmem.Buffer) (*txBinding, error) {
	if err := d.use(); err != nil {
		return nil, err
	}
	buf, err := d.buffer(b)
	if err != nil {
		return nil, err
	}
	tx := &txBinding{}
	tx.forget = func() { d.txBinds.Delete(tx.id) }
	if err := tx.open(d, buf, func(g *genl, fd int) (uint32, error) { return g.bindTX(d.index, fd) }); err != nil {
		return nil, err
	}
	d.txBinds.Store(tx.id, tx)
	return tx, nil
}

var (
	_ devmem.Buffer  = (*buffer)(nil)
	_ devmem.Binding = (*rxBinding)(nil)
	_ devmem.Binding = (*txBinding)(nil)
)
