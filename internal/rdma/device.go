package rdma

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"syscall"

	"vnic.dev/vnic/internal/control"
)

// What travels to the NIC is control's own.
type (
	WR    = control.WR      // a work request
	WC    = control.WC      // a completion; Err says what it means
	SGE   = control.SGE     // a piece of local memory; MR.Part and Local.SGE make them
	Range = control.MRRange // a piece of guest memory, by its address as the NIC sees it
	Path  = control.QPPath  // between two queue pairs
)

// Access of memory regions.
const (
	LocalWrite  = control.AccessLocalWrite // by READs and receives of this end
	RemoteWrite = control.AccessRemoteWrite
	RemoteRead  = control.AccessRemoteRead
)

// Device is RDMA on a port.
type Device struct {
	Limits control.RDMALimits

	client *control.Client
	gen    uint32
	undo   func()

	mu       sync.Mutex
	objects  map[object]struct{} // under mu
	cqs      map[uint32]*CQ      // under mu
	closed   bool                // under mu
	transfer uint32              // under mu: the number of the last one
}

// object is what Close of a Device ends. Lower ranks go first, as they use what has higher ones.
type object interface {
	Close() error
	rank() int
}

// Open asks the NIC what it can do. EOPNOTSUPP: it has no RDMA. The client is the caller's, who closes it after the
// device.
func Open(client *control.Client) (*Device, error) {
	limits, err := client.RDMALimits(context.Background())
	if errors.Is(err, syscall.EOPNOTSUPP) {
		return nil, fmt.Errorf("this NIC has no RDMA: %w", err)
	}
	if err != nil {
		return nil, err
	}
	d := &Device{Limits: limits, client: client, gen: client.Generation(), objects: make(map[object]struct{}),
		cqs: make(map[uint32]*CQ)}
	d.undo = client.OnRDMA(control.RDMAEvents{Completions: d.notified, Reset: func(uint32, uint32) { d.wakeAll() }})
	return d, nil
}

// notified wakes those who wait for completions of a CQ; called by the client's Receive.
func (d *Device) notified(cq uint32) {
	d.mu.Lock()
	c := d.cqs[cq]
	d.mu.Unlock()
	if c != nil {
		c.wake()
	}
}

func (d *Device) wakeAll() {
	d.mu.Lock()
	var all []*CQ
	for _, c := range d.cqs {
		all = append(all, c)
	}
	d.mu.Unlock()
	for _, c := range all {
		c.wake()
	}
}

// Close ends all that the device has made, in the right order. It goes on after an error, and returns all of them.
func (d *Device) Close() error {
	d.undo()
	d.mu.Lock()
	d.closed = true
	var all []object
	for o := range d.objects {
		all = append(all, o)
	}
	d.mu.Unlock()
	slices.SortFunc(all, func(a, b object) int { return a.rank() - b.rank() })
	var errs []error
	for _, o := range all {
		errs = append(errs, o.Close())
	}
	d.wakeAll()
	return errors.Join(errs...)
}

func (d *Device) wasReset() bool { return d.client.Generation() != d.gen }

// alive is nil while calls have a meaning.
func (d *Device) alive() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case d.wasReset():
		return ErrReset
	case d.closed:
		return fmt.Errorf("rdma: the device is closed: %w", net.ErrClosed)
	}
	return nil
}

// ask has the NIC do something. It is not given up half way, as nobody would know whether it was done: the client has a
// limit of its own.
func (d *Device) ask(ctx context.Context, f func(ctx context.Context) error) error {
	if err := ctx.Err(); err != nil {
		return context.Cause(ctx)
	}
	if err := d.alive(); err != nil {
		return err
	}
	err := f(context.WithoutCancel(ctx))
	if d.wasReset() {
		return ErrReset
	}
	return err
}

// create makes an object: add has the NIC do it, and del undoes it.
func create[O object](d *Device, add func(ctx context.Context) (uint32, error),
	del func(ctx context.Context, number uint32) error, object func(number uint32) O) (o O, err error) {
	if err := d.alive(); err != nil {
		return o, err
	}
	ctx := context.Background()
	number, err := add(ctx)
	if err != nil {
		if d.wasReset() {
			err = ErrReset
		}
		return o, err
	}
	made := object(number)
	if err = d.keep(made, number); err != nil {
		return o, errors.Join(err, del(ctx, number))
	}
	return made, nil
}

func (d *Device) keep(o object, number uint32) error {
	if err := d.alive(); err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return net.ErrClosed
	}
	d.objects[o] = struct{}{}
	if c, ok := o.(*CQ); ok {
		d.cqs[number] = c
	}
	return nil
}

// end ends an object, once: del has the NIC do it. What a reset has taken is gone.
func (d *Device) end(o object, del func(ctx context.Context) error) error {
	d.mu.Lock()
	_, there := d.objects[o]
	d.mu.Unlock()
	if !there {
		return nil
	}
	if !d.wasReset() {
		if err := del(context.Background()); err != nil && !errors.Is(err, syscall.ENOENT) && !d.wasReset() {
			return err
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.objects, o)
	if c, ok := o.(*CQ); ok {
		delete(d.cqs, c.ID)
	}
	return nil
}

// Counts reads what RDMA has done on the port, all its queue pairs together.
func (d *Device) Counts(ctx context.Context) (c control.RDMAPortCounts, err error) {
	err = d.ask(ctx, func(ctx context.Context) error {
		c, err = d.client.RDMACounts(ctx)
		return err
	})
	return c, err
}

// SetMailbox says at which page of a GPU, by its offset, its driver tells of invalidations. MRs on demand take it.
func (d *Device) SetMailbox(ctx context.Context, gpu uint16, off uint64) error {
	return d.ask(ctx, func(ctx context.Context) error {
		return d.client.SetMailbox(ctx, control.Mailbox{GPU: gpu, Off: off})
	})
}
