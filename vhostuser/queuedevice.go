package vhostuser

import (
	"fmt"
	"log/slog"
	"time"

	"vnic.dev/vnic/internal/scm"
)

// Queue is a started queue of a QueueDevice. A struct that embeds a *virtq.Device has all but
// Process. Its methods are called on the queue's goroutine, one at a time; Base and Close when that
// has ended.
type Queue interface {
	// Process takes chains that the driver made available and commits them: at least one if there is
	// one, and not so many that it takes long, as what stops the queue waits for it. An error stops
	// the queue and is logged.
	Process() error
	// Pending tells whether Process would find a chain or an error.
	Pending() bool
	// Publish shows the driver what was committed, and tells whether it wants a call.
	Publish() (call bool)
	// Base is the next available index, which the frontend is told.
	Base() uint32
	// Close gives up the ring's memory.
	Close()
}

// QueueDevice is a Device that is its queues and nothing else: no feature bits of its type, no
// configuration space, no MTU. Each queue has a goroutine that waits for kicks, calls Process, and
// sends calls. A queue that is disabled waits. A type that needs more embeds a QueueDevice and
// replaces methods.
//
// A frontend that never reads its calls holds up its own queue alone, and not the end of it. One
// that makes its eventfds blocking, while they are used, can hold up its own connection and the end
// of Serve.
type QueueDevice struct {
	BaseDevice
	Queues int                          // how many there are, 1 to MaxVrings; set before Serve
	Open   func(v Vring) (Queue, error) // opens a queue that starts; v's descriptors are not its business
	Log    *slog.Logger                 // may be nil

	enabled [MaxVrings]bool
	workers [MaxVrings]*queueWorker // nil: not started
}

// queueWorker is a started queue.
type queueWorker struct {
	kicks
	queue Queue
}

// MaxQueues returns Queues.
func (d *QueueDevice) MaxQueues() int { return d.Queues }

// StartQueue opens the queue and starts its goroutine.
func (d *QueueDevice) StartQueue(v Vring) error {
	w := new(queueWorker)
	if err := w.take(v, d.enabled[v.Index]); err != nil {
		return err
	}
	var err error
	if w.queue, err = d.Open(v); err != nil {
		w.close()
		return err
	}
	d.workers[v.Index] = w
	w.start(func() {
		if err := w.run(v.Running); err != nil && d.Log != nil {
			d.Log.Error("queue stopped", "queue", v.Index, "err", err)
		}
	})
	return nil
}

// StopQueue waits until the goroutine has ended.
func (d *QueueDevice) StopQueue(index int) (base uint32, err error) {
	w := d.workers[index]
	if w == nil {
		return 0, fmt.Errorf("queue %d is not started", index)
	}
	w.stop()
	d.workers[index] = nil
	defer w.queue.Close()
	return w.queue.Base(), nil
}

// SetCall has the queue's goroutine use another call eventfd, and fire it once.
func (d *QueueDevice) SetCall(index, fd int) error {
	w := d.workers[index]
	if w == nil {
		scm.Close(fd)
		return fmt.Errorf("queue %d is not started", index)
	}
	return w.setCall(fd)
}

// EnableQueue lets the queue's goroutine go on, or has it wait.
func (d *QueueDevice) EnableQueue(index int, on bool) error {
	d.enabled[index] = on
	if w := d.workers[index]; w != nil {
		return w.enable(on)
	}
	return nil
}

// run works until kick is closed or the queue has an error. It looks at the queue at its first
// kick, or now.
func (w *queueWorker) run(now bool) error {
	for started := now; ; {
		for started && w.enabled.Load() && w.queue.Pending() {
			err := w.queue.Process()
			if w.queue.Publish() {
				w.fire()
			}
			if err != nil {
				return err
			}
			if w.kick.SetReadDeadline(time.Time{}) != nil {
				return nil // closed: a driver that always has more does not keep us
			}
		}
		kicked, err := w.wait()
		if err != nil {
			return nil
		}
		started = started || kicked
	}
}
