package stack

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	"vnic.dev/vnic/devmem"
	"vnic.dev/vnic/gpumem"
	"vnic.dev/vnic/internal/devmembase"
	"vnic.dev/vnic/internal/limits"
)

// Buffer implements devmem.Buffer.
type Buffer struct {
	devmembase.Region
	s *Stack

	id     uint32 // the NIC's number of the buffer, 0 if Restore failed; configMu protects id and closed
	closed bool
}

// Close unregisters the buffer. It returns an error while a binding of the buffer is not done, or if
// the command to the NIC fails.
func (b *Buffer) Close() error {
	b.s.configMu.Lock()
	defer b.s.configMu.Unlock()
	if b.closed {
		return nil
	}
	if err := devmembase.InUse(b, b.s.allBindings()); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), limits.Control.Here())
	defer cancel()
	if err := b.s.control.UnregisterBuffer(ctx, b.id); err != nil {
		return fmt.Errorf("buffer %d: close: %w", b.id, err)
	}
	b.closed = true
	delete(b.s.buffers, b)
	return nil
}

// rxBinding is a buffer bound for receive, with a pool of its pages and shadow queues.
//
// A bound queue without a posted page receives nothing, not even segments without payload such as resets: the driver
// posts a header buffer only together with pages. If an application holds most pages, received GSO packets of up to
// 64 KiB may never fit.
type rxBinding struct {
	binding
	pool         *gpumem.Pool
	shadowQueues []*shadowQueue

	// configMu protects closed and unbound.
	closed  bool
	unbound bool // the NIC has released all queues
}

type txBinding struct {
	binding
	refs   atomic.Int64 // 1 until Close, and 1 for each incomplete send
	closed atomic.Bool
}

type binding struct {
	s     *Stack
	id    uint32
	buf   *Buffer
	nicID uint32 // the NIC's number of the binding; under configMu
	done  chan struct{}
}

// ID implements devmem.Binding.
func (b *binding) ID() uint32 { return b.id }

// Done implements devmem.Binding.
func (b *binding) Done() <-chan struct{} { return b.done }

func (b *rxBinding) queues() (list []uint16) {
	for _, l := range b.shadowQueues {
		list = append(list, uint16(l.queue))
	}
	return list
}

// ref takes a reference for a send. It returns false if the binding is closed.
func (b *txBinding) ref() bool {
	for {
		n := b.refs.Load()
		if n == 0 || b.closed.Load() {
			return false
		}
		if b.refs.CompareAndSwap(n, n+1) {
			return true
		}
	}
}

// unref drops a reference; the last one ends the binding. It may be called with any lock held.
func (b *txBinding) unref() {
	if b.refs.Add(-1) == 0 {
		b.s.work.Go(func() { // in a goroutine, because the command Unbind waits for the NIC's answer
			b.s.configMu.Lock()
			defer b.s.configMu.Unlock()
			b.s.txBinds.Delete(b.id)
			if !b.s.conns.Closed() { // Stack.Close closes the NIC, which drops all bindings
				if err := b.s.unbind(b.nicID); err != nil {
					b.s.log.Warn("unbind tx", "binding", b.id, "err", err)
				}
			}
			close(b.done)
		})
	}
}

// Close ends the binding for new sends. The binding is done when its last send is complete.
func (b *txBinding) Close() error {
	if !b.closed.Swap(true) {
		b.unref()
	}
	return nil
}

// Close unbinds the queues. It returns an error if the command Unbind fails, or if the NIC does not release a queue.
// In the second case the NIC may still write to the pages posted to the queue, and the binding is not done before
// received frames have used these pages up, a later Close succeeds, or the stack is closed.
func (b *rxBinding) Close() error {
	b.s.configMu.Lock()
	defer b.s.configMu.Unlock()
	return b.s.closeRX(b)
}

func (s *Stack) closeRX(b *rxBinding) error {
	if b.unbound {
		return nil
	}
	b.closed, b.unbound = true, true
	err := s.unbind(b.nicID) // before UnbindQueue: a queue that the NIC has bound must stay split
	if err == nil {
		b.nicID = 0
	}
	for _, l := range b.shadowQueues {
		if s.rx[l.queue].Load() != l {
			continue
		}
		if e := s.nic.UnbindQueue(l.queue); e != nil {
			err = errors.Join(err, fmt.Errorf("queue %d: unbind: %w", l.queue, e))
			b.unbound = false
			continue // the stack still receives the queue's frames
		}
		s.rx[l.queue].Store(nil)
	}
	b.pool.Close(b.unbound) // the binding is done when all pages are back in the pool
	return err
}

// ended is the pool's callback when a closed binding has all its pages back. Its caller may hold any locks.
func (b *rxBinding) ended() {
	b.s.work.Go(func() {
		b.s.configMu.Lock()
		defer b.s.configMu.Unlock()
		delete(b.s.rxBinds, b.id)
		for _, l := range b.shadowQueues {
			b.s.rx[l.queue].CompareAndSwap(l, nil) // for a queue that the NIC did not release; no page is posted to it now
		}
		b.s.dropShadowQueues(b.shadowQueues)
		close(b.done)
	})
}

// unbind sends the command Unbind, unless the NIC has failed, or id is 0.
func (s *Stack) unbind(id uint32) error {
	if id == 0 || s.nic.Err() != nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), limits.Control.Here())
	defer cancel()
	return s.control.Unbind(ctx, id)
}

func (s *Stack) unbindAll() error {
	s.configMu.Lock()
	defer s.configMu.Unlock()
	var err error
	for _, b := range s.rxBinds {
		err = errors.Join(err, s.closeRX(b))
	}
	s.txBinds.Range(func(_, b any) bool {
		b.(*txBinding).Close()
		return true
	})
	return err
}

var (
	_ devmem.Buffer  = (*Buffer)(nil)
	_ devmem.Binding = (*rxBinding)(nil)
	_ devmem.Binding = (*txBinding)(nil)
)
