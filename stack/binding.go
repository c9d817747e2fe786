package stack

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"vnic.dev/vnic/devmem"
	"vnic.dev/vnic/gpumem"
	"vnic.dev/vnic/internal/diagnosis"
	"vnic.dev/vnic/internal/limits"
)

// Buffer is a devmem.Buffer.
type Buffer struct {
	s         *Stack
	gpu       int
	off, size uint64

	// under configMu
	id     uint32 // the NIC's
	bound  int
	closed bool
}

// GPU is the number of the GPU that the memory is of.
func (b *Buffer) GPU() int { return b.gpu }

// Offset is where in the GPU's memory the buffer begins, in bytes.
func (b *Buffer) Offset() uint64 { return b.off }

// Size is the buffer's, in bytes.
func (b *Buffer) Size() uint64 { return b.size }

// Close unregisters the buffer.
func (b *Buffer) Close() error {
	b.s.configMu.Lock()
	defer b.s.configMu.Unlock()
	if b.closed {
		return nil
	}
	if b.bound > 0 {
		return fmt.Errorf("buffer [%#x, +%#x) of gpu %d: close: %w", b.off, b.size, b.gpu, diagnosis.InUse(b.s.boundTo(b)))
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

// boundTo are the bindings of a buffer that are not done. Under configMu.
func (s *Stack) boundTo(b *Buffer) []devmem.BindingStats {
	return slices.DeleteFunc(s.bindingStats(), func(st devmem.BindingStats) bool {
		if rb := s.rxBinds[st.ID]; rb != nil {
			return rb.buf != b
		}
		v, ok := s.txBinds.Load(st.ID)
		return !ok || v.(*txBinding).buf != b
	})
}

// rxBinding is a buffer bound for receive: its pages belong to a pool, and each of its queues has a shadow queue.
//
// A queue whose pool has no page to post takes nothing, headers and resets neither: a chain of the
// device is headers and payload, and there is no chain without pages. Frames wait in the NIC then
// until pages are free, and are dropped after that; so with most pages in an application's hands,
// GSO packets of up to 64 KiB may never fit, and the peer, whose window knows nothing of tokens,
// goes on with what its retransmissions get through. Bind more than an application holds.
type rxBinding struct {
	binding
	pool         *gpumem.Pool
	shadowQueues []*shadowQueue

	// under configMu
	closed  bool
	unbound bool // closed, and the NIC has given up all queues
}

// txBinding is a buffer bound for transmit.
type txBinding struct {
	binding
	refs   atomic.Int64 // 1 until Close, and 1 for each send
	closed atomic.Bool
	once   sync.Once
}

// binding is what both kinds of bindings have.
type binding struct {
	s     *Stack
	id    uint32
	buf   *Buffer
	nicID uint32 // under configMu
	done  chan struct{}
}

// ID implements devmem.Binding.
func (b *binding) ID() uint32 { return b.id }

// Done implements devmem.Binding.
func (b *binding) Done() <-chan struct{} { return b.done }

// ref takes a reference for a send; false if the binding is closed.
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

// unref may be called with any lock held.
func (b *txBinding) unref() {
	if b.refs.Add(-1) == 0 {
		b.s.work.Go(func() { // commands wait for an answer
			b.s.configMu.Lock()
			defer b.s.configMu.Unlock()
			b.s.txBinds.Delete(b.id)
			b.buf.bound--
			if !b.s.isClosed() { // else the NIC is about to forget all
				if err := b.s.unbind(b.nicID); err != nil {
					b.s.log.Warn("unbind tx", "binding", b.id, "err", err)
				}
			}
			close(b.done)
		})
	}
}

// Close ends the binding for new sends.
func (b *txBinding) Close() error {
	b.once.Do(func() {
		b.closed.Store(true)
		b.unref()
	})
	return nil
}

// Close takes the queues back. If the NIC keeps one it may still write to its pages: the binding is
// not done then before these are used, or Close is called again and succeeds, or the stack is
// closed.
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
	err := s.unbind(b.nicID) // first: a bound queue cannot cease to be split
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
			continue // what still comes there is received
		}
		s.rx[l.queue].Store(nil)
	}
	b.pool.Close(b.unbound) // the binding is done when its last page is back
	return err
}

// ended is called when the last page of a closed binding is back, under whatever locks.
func (b *rxBinding) ended() {
	b.s.work.Go(func() {
		b.s.configMu.Lock()
		defer b.s.configMu.Unlock()
		delete(b.s.rxBinds, b.id)
		b.buf.bound--
		for _, l := range b.shadowQueues {
			b.s.rx[l.queue].CompareAndSwap(l, nil) // a queue that the NIC kept, without pages now
		}
		b.s.dropShadowQueues(b.shadowQueues)
		close(b.done)
	})
}

// unbind tells the NIC, unless that is gone with all that it knew.
func (s *Stack) unbind(id uint32) error {
	if id == 0 || s.nic.Err() != nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), limits.Control.Here())
	defer cancel()
	return s.control.Unbind(ctx, id)
}

func (s *Stack) isClosed() bool {
	s.connMu.Lock()
	defer s.connMu.Unlock()
	return s.closed
}

// unbindAll closes every binding: the device gets its queues back.
func (s *Stack) unbindAll(context.Context) error {
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
