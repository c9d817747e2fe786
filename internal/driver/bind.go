package driver

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/internal/control"
	"vnic.dev/vnic/internal/limits"
)

// defaultHeader is the limit of split headers for a NIC that reports none (docs/specs/virtio.md, 4).
const defaultHeader = 256

// BindQueue turns on header split for a receive queue without host buffers, and posts pages of a GPU to it.
// The caller registers the pages' buffer with the NIC before the call, and steers flows to the queue after it.
func (n *NIC) BindQueue(queue int, gpu int, src PageSource) error {
	n.binder.Lock()
	defer n.binder.Unlock()
	q, err := n.bindable(queue)
	if err != nil {
		return err
	}
	g := n.gpu(gpu)
	switch {
	case q.split != nil:
		return fmt.Errorf("receive queue %d is bound: %w", queue, unix.EBUSY)
	case g == nil:
		return fmt.Errorf("GPU %d: the device does not reach it: %w", gpu, unix.ENODEV)
	case n.receiver.Load() == nil:
		return fmt.Errorf("receive queue %d: no Receiver yet: Start comes first: %w", queue, unix.EINVAL)
	}
	if err := n.useGPU(g); err != nil {
		return fmt.Errorf("receive queue %d: %w", queue, err)
	}
	ctx, cancel := context.WithTimeout(n.life, limits.Control.Here())
	defer cancel()
	info, err := n.ctl.Hello(ctx)
	if err != nil {
		return fmt.Errorf("asking the NIC what it splits: %w", err)
	}
	if err := q.makeHeaders(int(info.HeaderLimit)); err != nil {
		return fmt.Errorf("header buffers of receive queue %d: %w", queue, err)
	}
	// Split goes on before the first page is posted, so that no frame arrives unsplit.
	if err := n.setSplit(ctx, queue, true); err != nil {
		return err
	}
	err = n.do(func() error {
		if err := n.Err(); err != nil {
			return err
		}
		q.split = newSplit(*g, src, q.hdrs, n.opts.PagesPerChain)
		return q.postSplit(nil)
	})
	if err != nil {
		err = fmt.Errorf("posting pages to receive queue %d: %w", queue, err)
		if q.split == nil {
			return err
		}
		return errors.Join(err, n.unbind(q))
	}
	return nil
}

// UnbindQueue turns header split off and returns the unused pages to their source. A vhost-user backend
// (Attach) stops the queue meanwhile (GET_VRING_BASE); a PCI device (OpenPCI) has to return all chains, with
// used.len 0, when split goes off. The caller must undo the NIC's own binding of the queue before.
func (n *NIC) UnbindQueue(queue int) error {
	n.binder.Lock()
	defer n.binder.Unlock()
	if n.closed {
		return fmt.Errorf("NIC: %w", ErrClosed)
	}
	if queue < 0 || queue >= len(n.rx) || n.rx[queue].split == nil {
		return fmt.Errorf("receive queue %d is not bound: %w", queue, unix.EINVAL)
	}
	return n.unbind(n.rx[queue])
}

// Refill tells the driver that pages for a bound queue are free again. It does not block.
func (n *NIC) Refill(queue int) {
	if queue < 0 || queue >= len(n.rx) {
		return
	}
	if q := n.rx[queue]; q.refill.CompareAndSwap(false, true) {
		n.wake()
	}
}

func (n *NIC) bindable(queue int) (*rxQueue, error) {
	if n.closed {
		return nil, fmt.Errorf("NIC: %w", ErrClosed)
	}
	if err := n.Err(); err != nil {
		return nil, err
	}
	if queue < 0 || queue >= len(n.rx) {
		return nil, fmt.Errorf("receive queue %d of %d: %w", queue, len(n.rx), unix.EINVAL)
	}
	if queue < n.opts.HostQueues {
		return nil, fmt.Errorf("receive queue %d has buffers in host memory, as those below %d: %w", queue, n.opts.HostQueues,
			unix.EBUSY)
	}
	return n.rx[queue], nil
}

// makeHeaders allocates buffers for headers of up to limit bytes (0: defaultHeader), unless q has buffers of that
// size.
func (q *rxQueue) makeHeaders(limit int) error {
	if limit == 0 {
		limit = defaultHeader
	}
	size := netHdrLen + limit
	if limit > PageSize-netHdrLen {
		return fmt.Errorf("headers of up to %d bytes: more than a page", limit)
	}
	if len(q.hdrs) > 0 && len(q.hdrs[0].b) == size {
		return nil
	}
	slot := 512
	for slot < size {
		slot *= 2
	}
	hdrs, err := slab(q.n.t, int(q.ring.config.Size), slot)
	if err != nil {
		return err
	}
	for i := range hdrs {
		hdrs[i] = hdrs[i].cut(0, size)
	}
	q.hdrs = hdrs
	return nil
}

func (n *NIC) setSplit(ctx context.Context, queue int, on bool) error {
	if err := n.ctl.SetSplit(ctx, control.Split{Queue: uint16(queue), On: on}); err != nil {
		return fmt.Errorf("header split of receive queue %d to %v: %w", queue, on, err)
	}
	return nil
}

func (n *NIC) unbind(q *rxQueue) error {
	ctx, cancel := context.WithTimeout(n.life, limits.Control.Here())
	defer cancel()
	var drained <-chan struct{}
	if err := n.do(func() error {
		q.split.draining = true
		drained = q.split.drained
		return q.postSplit(nil)
	}); err != nil {
		return err
	}
	if n.Err() != nil {
		return n.do(func() error { q.giveBack(); return nil })
	}
	if !n.offloads.QueueReset {
		return n.drain(ctx, q, drained)
	}
	n.tmu.Lock()
	err := n.t.stopQueue(q.ring.vq)
	n.tmu.Unlock()
	if err != nil {
		return fmt.Errorf("receive queue %d: its pages stay with the device until Close: %w", q.index, err)
	}
	if err := n.setSplit(ctx, q.index, false); err != nil {
		n.log.Warn("header split stays on", "queue", q.index, "error", err)
	}
	err = n.do(func() error {
		for n.Err() == nil {
			worked, err := q.poll(&n.poller.batch)
			if err != nil {
				n.log.Warn("frames lost at unbinding", "queue", q.index, "error", err)
			}
			if err != nil || !worked {
				break
			}
		}
		q.giveBack()
		return q.ring.renew()
	})
	if err != nil {
		return err
	}
	n.tmu.Lock()
	defer n.tmu.Unlock()
	if err := n.t.setupQueue(q.ring.vq, q.ring.addrs); err != nil {
		return fmt.Errorf("receive queue %d: setting it up again: %w", q.index, err)
	}
	return n.t.startQueue(q.ring.vq)
}

func (n *NIC) drain(ctx context.Context, q *rxQueue, drained <-chan struct{}) error {
	if err := n.setSplit(ctx, q.index, false); err != nil {
		return err
	}
	if drained != nil {
		select {
		case <-drained:
		case <-n.failed:
		case <-ctx.Done():
			return fmt.Errorf("receive queue %d: the device did not return its chains when split went off: "+
				"its pages stay there until Close: %w", q.index, ctx.Err())
		}
	}
	return n.do(func() error { q.giveBack(); return nil })
}
