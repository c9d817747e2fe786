package vhostuser

import (
	"fmt"
	"log/slog"

	"vnic.dev/vnic/internal/scm"
)

// Queue is a started queue of a QueueDevice. A struct that embeds a *virtq.Device lacks only Base and Process.
// The queue's goroutine calls Process, Pending and Publish; Base and Close are called while it does not run.
type Queue interface {
	// Process takes available chains and commits them: at least one if there is one, and only a bounded number,
	// because stopping the queue waits for it. After an error it is not called again.
	Process() error
	// Pending reports whether Process would find a chain or an error.
	Pending() bool
	// Publish shows the driver the committed chains, and reports whether it wants a call.
	Publish() (call bool)
	// Base returns the next available index.
	Base() uint32
	// Close releases the ring's memory.
	Close()
}

// QueueDevice is a Device that consists only of queues. Each started queue has a goroutine that waits for
// kicks, calls Process, and sends calls.
//
// A frontend that never reads its calls blocks only its own queue, which can be stopped. A frontend that makes
// its eventfds blocking while they are in use can block the end of Serve.
type QueueDevice struct {
	BaseDevice
	Queues int                          // number of queues, 1 to MaxVrings; set before Serve
	Open   func(v Vring) (Queue, error) // must not use v's descriptors
	Log    *slog.Logger                 // may be nil

	enabled [MaxVrings]bool
	workers [MaxVrings]*queueWorker // nil: not started
}

type queueWorker struct {
	*Worker
	queue Queue
}

// MaxQueues returns Queues.
func (d *QueueDevice) MaxQueues() int { return d.Queues }

// StartQueue opens queue v.Index and starts its goroutine.
func (d *QueueDevice) StartQueue(v Vring) error {
	q, err := d.Open(v)
	if err != nil {
		scm.Close(v.Kick)
		scm.Close(v.Call)
		scm.Close(v.Err)
		return err
	}
	failed := false
	w, err := StartWorker(v, d.enabled[v.Index], func(w *Worker) (more bool) {
		if failed || !q.Pending() {
			return false
		}
		err := q.Process()
		if q.Publish() {
			w.Call()
		}
		if failed = err != nil; failed && d.Log != nil {
			d.Log.Error("queue stopped", "queue", v.Index, "err", err)
		}
		return !failed
	})
	if err != nil {
		q.Close()
		return err
	}
	d.workers[v.Index] = &queueWorker{w, q}
	return nil
}

// StopQueue stops the queue's goroutine, closes the queue, and returns its Base. A queue that is not started is an
// error.
func (d *QueueDevice) StopQueue(index int) (base uint32, err error) {
	w := d.workers[index]
	if w == nil {
		return 0, fmt.Errorf("queue %d is not started", index)
	}
	w.Stop()
	d.workers[index] = nil
	defer w.queue.Close()
	return w.queue.Base(), nil
}

// SetCall makes the queue use another call eventfd, -1 for none, and fire it once. If the queue is not started, SetCall
// closes fd and returns an error.
func (d *QueueDevice) SetCall(index, fd int) error {
	w := d.workers[index]
	if w == nil {
		scm.Close(fd)
		return fmt.Errorf("queue %d is not started", index)
	}
	return w.SetCall(fd)
}

// EnableQueue lets the queue's goroutine process the ring, or makes it wait. If the queue is not started, this holds
// from its start on.
func (d *QueueDevice) EnableQueue(index int, on bool) error {
	d.enabled[index] = on
	if w := d.workers[index]; w != nil {
		return w.Enable(on)
	}
	return nil
}
