package rdma

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"sync"
	"syscall"
	"time"

	"vnic.dev/vnic/internal/control"
)

// Times between the polls of a waiting call, as the NIC's notify of a completion may be lost.
const (
	firstPoll = 100 * time.Millisecond // the first time; each later one is twice as long, up to lastPoll
	lastPoll  = time.Second
)

// CQ is a completion queue, which queue pairs may share. Several goroutines may wait: each completion goes to
// one.
type CQ struct {
	ID    uint32
	Depth int
	d     *Device

	polls chan struct{} // capacity 1: full during a poll, so that completions stay in order

	mu      sync.Mutex
	quiet   bool              // under mu: the NIC sends a notify for the next completion, or a poll is in progress
	common  []WC              // under mu: polled, for Poll and Wait to return
	claims  map[uint32]*claim // under mu: of running transfers, by number
	changed chan struct{}     // under mu: closed and replaced when waiting calls must look again
	closed  bool              // under mu
}

// claim holds the completions of one transfer.
type claim struct {
	qp   *QP
	wcs  []WC // under the CQ's mu
	gone bool // under the CQ's mu: the queue pair was closed
}

// transferBit marks ids of transfers' work requests; bits 32 to 62 have the transfer's number, the lower ones the work
// request's.
const transferBit = 1 << 63

// NewCQ makes a completion queue with depth entries. depth may exceed Limits.Depth; the NIC has another limit for it. A
// work request uses an entry from its post until its completion is polled, or until it ends without one.
func (d *Device) NewCQ(depth int) (*CQ, error) {
	if depth <= 0 || uint64(depth) > math.MaxUint32 {
		return nil, fmt.Errorf("completion queue of %d places: it takes one at least: %w", depth, syscall.EINVAL)
	}
	return create(d, func(ctx context.Context) (uint32, error) { return d.client.AddCQ(ctx, uint32(depth)) },
		d.client.DelCQ, func(id uint32) *CQ {
			return &CQ{ID: id, Depth: depth, d: d, polls: make(chan struct{}, 1), quiet: true,
				claims: make(map[uint32]*claim), changed: make(chan struct{})}
		})
}

// Close destroys the CQ; waiting calls return net.ErrClosed. EBUSY: a queue pair uses it.
func (c *CQ) Close() error {
	err := c.d.end(c, func(ctx context.Context) error { return c.d.client.DelCQ(ctx, c.ID) })
	if err == nil {
		c.mu.Lock()
		c.closed = true
		c.mu.Unlock()
		c.wake()
	}
	return err
}

func (c *CQ) rank() int { return 1 }

func (c *CQ) wake() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.quiet = false
	c.broadcast()
}

// broadcast wakes waiting goroutines. The caller holds mu.
func (c *CQ) broadcast() {
	close(c.changed)
	c.changed = make(chan struct{})
}

// Poll returns at most limit completions, and does not wait for new ones. An error that comes after some completions is
// not returned. The end of ctx does not interrupt a request to the NIC: completions in its answer would be lost.
func (c *CQ) Poll(ctx context.Context, limit int) ([]WC, error) {
	all, _, _ := c.take(nil, limit)
	for len(all) < limit {
		if err := c.poll(ctx, true); err != nil {
			if len(all) > 0 {
				return all, nil
			}
			return nil, err
		}
		wcs, quiet, _ := c.take(nil, limit-len(all))
		all = append(all, wcs...)
		if quiet {
			break
		}
	}
	return all, nil
}

// Wait waits until there is a completion, and returns at most control.MaxWCs completions. It also polls, in
// case the NIC's notify is lost. net.ErrClosed: the CQ, or the device, was closed.
func (c *CQ) Wait(ctx context.Context) ([]WC, error) { return c.wait(ctx, nil) }

// wait is Wait for owner's transfer, or for the program if owner is nil.
func (c *CQ) wait(ctx context.Context, owner *claim) ([]WC, error) {
	pause := firstPoll
	timer := time.NewTimer(pause)
	defer timer.Stop()
	for {
		wcs, quiet, changed := c.take(owner, control.MaxWCs)
		if len(wcs) > 0 {
			return wcs, nil
		}
		if err := c.ended(owner); err != nil {
			return nil, err
		}
		late := false
		if quiet {
			select {
			case <-changed:
				continue
			case <-timer.C:
				late = true
				pause = min(2*pause, lastPoll)
				timer.Reset(pause)
			case <-ctx.Done():
				return nil, context.Cause(ctx)
			}
		}
		if err := c.poll(ctx, late); err != nil {
			return nil, err
		}
	}
}

func (c *CQ) ended(owner *claim) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.closed:
		return fmt.Errorf("completion queue %d is closed: %w", c.ID, net.ErrClosed)
	case owner != nil && owner.gone:
		return fmt.Errorf("queue pair %d is closed: %w", owner.qp.Number, net.ErrClosed)
	}
	return nil
}

// take removes and returns at most limit polled completions of owner's transfer, or, if owner is nil, of the program.
// quiet reports whether no other is polled and CQ.quiet is set. changed is closed when there may be more.
func (c *CQ) take(owner *claim, limit int) (wcs []WC, quiet bool, changed chan struct{}) {
	c.mu.Lock()
	defer c.mu.Unlock()
	from := &c.common
	if owner != nil {
		from = &owner.wcs
	}
	n := min(limit, len(*from))
	wcs, *from = (*from)[:n:n], (*from)[n:]
	return wcs, c.quiet && len(*from) == 0, c.changed
}

// poll polls the NIC, unless the CQ is quiet and force is not set.
func (c *CQ) poll(ctx context.Context, force bool) error {
	select {
	case c.polls <- struct{}{}:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	defer func() { <-c.polls }()
	c.mu.Lock()
	if c.quiet && !force {
		c.mu.Unlock()
		return nil
	}
	c.quiet = true // before the request, because a notify that comes later resets quiet
	c.mu.Unlock()
	got, err := ask(ctx, c.d, func(ctx context.Context) (control.Completions, error) {
		return c.d.client.PollCQ(ctx, control.Poll{CQ: c.ID, Max: control.MaxWCs})
	})
	c.mu.Lock()
	defer c.mu.Unlock()
	if err != nil || got.More {
		c.quiet = false
	}
	if errors.Is(err, syscall.ENOENT) {
		err = fmt.Errorf("completion queue %d is closed: %w", c.ID, net.ErrClosed)
	}
	for _, w := range got.WCs {
		if w.ID&transferBit == 0 {
			c.common = append(c.common, w)
		} else if owner := c.claims[transferOf(w.ID)]; owner != nil { // nil: the transfer was given up
			owner.wcs = append(owner.wcs, w)
		}
	}
	if len(got.WCs) > 0 || err != nil {
		c.broadcast()
	}
	return err
}

func transferOf(id uint64) uint32 { return uint32(id &^ transferBit >> 32) }

// claim assigns the completions of a transfer to owner, until release.
func (c *CQ) claim(number uint32, owner *claim) (release func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.claims[number] = owner
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.claims, number)
	}
}

func (c *CQ) gone(q *QP) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, owner := range c.claims {
		owner.gone = owner.gone || owner.qp == q
	}
	c.broadcast()
}
