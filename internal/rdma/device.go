package rdma

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"sync"
	"syscall"

	"vnic.dev/vnic/internal/control"
)

// Types of package control.
type (
	WR    = control.WR
	WC    = control.WC
	SGE   = control.SGE     // a piece of local memory; Local.SGE makes it
	Range = control.MRRange // a piece of guest memory, by its address for the NIC
	Path  = control.QPPath  // how a queue pair is connected with the peer's
)

// Access to memory regions.
const (
	LocalWrite  = control.AccessLocalWrite  // READs and receives of this end may write
	RemoteWrite = control.AccessRemoteWrite // WRITEs of the peer may write
	RemoteRead  = control.AccessRemoteRead  // READs of the peer may read
)

// Device is the RDMA part of a port.
type Device struct {
	Limits control.RDMALimits

	client *control.Client
	gen    uint32
	undo   func()

	mu       sync.Mutex
	objects  map[object]struct{}
	cqs      map[uint32]*CQ
	closed   bool
	transfer uint32 // under mu: number of the last transfer
}

// object is a thing made on a Device. Device.Close closes objects in ascending order of rank, because objects use
// objects of higher ranks.
type object interface {
	Close() error
	rank() int
}

// Open makes the Device of client's port, and asks the NIC for its limits. EOPNOTSUPP: the NIC has no RDMA. The caller
// closes the client after the device.
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

func (d *Device) notified(cq uint32) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if c := d.cqs[cq]; c != nil {
		c.wake()
	}
}

func (d *Device) wakeAll() {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, c := range d.cqs {
		c.wake()
	}
}

// Close closes all objects of the device. It continues after an object's error, and returns all errors.
func (d *Device) Close() error {
	d.undo()
	d.mu.Lock()
	d.closed = true
	all := slices.SortedFunc(maps.Keys(d.objects), func(a, b object) int { return a.rank() - b.rank() })
	d.mu.Unlock()
	var errs []error
	for _, o := range all {
		errs = append(errs, o.Close())
	}
	d.wakeAll()
	return errors.Join(errs...)
}

func (d *Device) wasReset() bool { return d.client.Generation() != d.gen }

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

// ask sends a command to the NIC by f, unless ctx has ended, the port was reset or the device is closed. The end of ctx
// does not interrupt f: it would be unknown whether the NIC has executed the command. After a reset the error is
// ErrReset.
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

func ask[R any](ctx context.Context, d *Device, f func(ctx context.Context) (R, error)) (r R, err error) {
	err = d.ask(ctx, func(ctx context.Context) (err error) {
		r, err = f(ctx)
		return err
	})
	return r, err
}

// create makes an object: add makes it on the NIC, and del undoes that if the device is closed meanwhile.
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

// end removes an object from the device, unless it was removed before. Unless the port was reset, it first calls del to
// delete the object on the NIC; if that fails, the object stays, but an object unknown to the NIC is removed.
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

// Counts reads the port's counters of RDMA.
func (d *Device) Counts(ctx context.Context) (control.RDMAPortCounts, error) {
	return ask(ctx, d, d.client.RDMACounts)
}

// SetMailbox sets the page of a GPU's memory, by its offset, to which the GPU's driver writes invalidations.
func (d *Device) SetMailbox(ctx context.Context, gpu uint16, off uint64) error {
	return d.ask(ctx, func(ctx context.Context) error {
		return d.client.SetMailbox(ctx, control.Mailbox{GPU: gpu, Off: off})
	})
}
