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

// Times between polls of a CQ whose notify may be lost.
const (
	firstPoll = 100 * time.Millisecond // doubles with each poll
	lastPoll  = time.Second
)

// CQ is a completion queue. Several queue pairs may share it, and goroutines that wait: each completion goes to one.
type CQ struct {
	ID    uint32
	Depth int
	d     *Device

	polls chan struct{} // of capacity 1: held by who polls, so that completions stay in order

	mu      sync.Mutex
	quiet   bool              // under mu: the NIC had no more, and will tell of the next
	common  []WC              // under mu: taken from the NIC and not yet given to the program
	claims  map[uint32]*claim // under mu: of transfers, by their number
	changed chan struct{}     // under mu: closed, and replaced, when there may be something new
	closed  bool              // under mu
}

// claim is a transfer that wants the completions of its own work requests.
type claim struct {
	qp   *QP
	wcs  []WC // under the CQ's mu
	gone bool // under the CQ's mu: the queue pair was closed
}

// own marks the ids of transfers' work requests: the transfer's number is above the lowest 32 bits.
const own = 1 << 63

// NewCQ makes a completion queue of so many places, of which the NIC may have more than Limits.Depth, as queue pairs
// share it. A work request takes a place from when it is posted until its completion is polled.
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

// Close ends the CQ; who waits for it gets net.ErrClosed. EBUSY: a queue pair has it.
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

// wake has those who wait look again, and ask the NIC.
func (c *CQ) wake() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.quiet = false
	c.broadcast()
}

// broadcast wakes all who wait; under mu.
func (c *CQ) broadcast() {
	close(c.changed)
	c.changed = make(chan struct{})
}

// Poll takes completions, at most limit, and does not wait for any. ctx ends no request that is under way, as
// completions would be lost with its answer.
func (c *CQ) Poll(ctx context.Context, limit int) ([]WC, error) {
	all, _, _ := c.take(nil, limit)
	for len(all) < limit {
		if err := c.poll(ctx, true); err != nil {
			if len(all) > 0 {
				return all, nil // the error comes again
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

// Wait waits for completions and takes them, as many as there are, but at least one. It waits for the NIC's notify, and
// asks now and then in case that is lost. net.ErrClosed: the CQ, or the device, was closed.
func (c *CQ) Wait(ctx context.Context) ([]WC, error) { return c.wait(ctx, nil) }

// wait is Wait for the completions of a transfer, or for those of the program itself.
func (c *CQ) wait(ctx context.Context, of *claim) ([]WC, error) {
	pause := firstPoll
	timer := time.NewTimer(pause)
	defer timer.Stop()
	for {
		wcs, quiet, changed := c.take(of, control.MaxWCs)
		if len(wcs) > 0 {
			return wcs, nil
		}
		if err := c.ended(of); err != nil {
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

// ended says why there will be no completions.
func (c *CQ) ended(of *claim) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.closed:
		return fmt.Errorf("completion queue %d is closed: %w", c.ID, net.ErrClosed)
	case of != nil && of.gone:
		return fmt.Errorf("queue pair %d is closed: %w", of.qp.Number, net.ErrClosed)
	}
	return nil
}

// take takes what was polled already; of nil: by none of the transfers. changed is closed when there may be more.
func (c *CQ) take(of *claim, limit int) (wcs []WC, quiet bool, changed chan struct{}) {
	c.mu.Lock()
	defer c.mu.Unlock()
	from := &c.common
	if of != nil {
		from = &of.wcs
	}
	n := min(limit, len(*from))
	wcs, *from = (*from)[:n:n], (*from)[n:]
	return wcs, c.quiet && len(*from) == 0, c.changed
}

// poll asks the NIC for completions and gives them to whom they belong. It need not ask, and does so only with force,
// if the NIC had none and has told of none.
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
	c.quiet = true // a notify that comes from now on has the next one ask
	c.mu.Unlock()
	var got control.Completions
	err := c.d.ask(ctx, func(ctx context.Context) (err error) {
		got, err = c.d.client.PollCQ(ctx, control.Poll{CQ: c.ID, Max: control.MaxWCs})
		return err
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
		if w.ID&own == 0 {
			c.common = append(c.common, w)
		} else if of := c.claims[transferOf(w.ID)]; of != nil { // else of one that was given up
			of.wcs = append(of.wcs, w)
		}
	}
	if len(got.WCs) > 0 || err != nil {
		c.broadcast()
	}
	return err
}

func transferOf(id uint64) uint32 { return uint32(id &^ own >> 32) }

// claim has completions of a transfer go to it, until release.
func (c *CQ) claim(number uint32, of *claim) (release func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.claims[number] = of
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.claims, number)
	}
}

// gone ends the waits of a queue pair's transfers.
func (c *CQ) gone(q *QP) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, of := range c.claims {
		of.gone = of.gone || of.qp == q
	}
	c.broadcast()
}
