package vhostuser

import (
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync/atomic"
	"time"

	"vnic.dev/vnic/dma"
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
	Queues int                          // how many there are, 1 to MaxVrings; set before Serve
	Open   func(v Vring) (Queue, error) // opens a queue that starts; v's descriptors are not its business
	Log    *slog.Logger                 // may be nil

	status  uint8
	workers [MaxVrings]worker
}

// worker is the goroutine of a queue. All but the atomics is of the goroutine of Serve, or set
// before the worker starts.
type worker struct {
	queue   Queue
	kick    *os.File // closed: stop
	call    atomic.Pointer[os.File]
	callDue atomic.Bool // the call was replaced: fire the new one
	enabled atomic.Bool
	done    chan struct{} // closed when the goroutine has ended; nil without one
}

// Features offers VIRTIO_F_VERSION_1 alone: no event index, no indirect descriptors.
func (*QueueDevice) Features() uint64 { return FeatureVersion1 }

// ProtocolFeatures offers all that a Backend supports but the configuration space, the MTU and
// RARP.
func (*QueueDevice) ProtocolFeatures() uint64 {
	return uint64(SupportedProtocol &^ (ProtocolConfig | ProtocolMTU | ProtocolRARP))
}

// SetFeatures accepts what Features offered.
func (*QueueDevice) SetFeatures(uint64) error { return nil }

// MaxQueues returns Queues.
func (d *QueueDevice) MaxQueues() int { return d.Queues }

// Status returns what SetStatus got.
func (d *QueueDevice) Status() uint8 { return d.status }

// SetStatus keeps the device status.
func (d *QueueDevice) SetStatus(s uint8) error {
	d.status = s
	return nil
}

// errNotOffered answers what a frontend may send only if its protocol feature was offered.
var errNotOffered = errors.New("not offered by this device type")

// MTU refuses: the protocol feature is not offered.
func (*QueueDevice) MTU(uint16) error { return errNotOffered }

// GetConfig refuses: the protocol feature is not offered.
func (*QueueDevice) GetConfig(uint32, []byte) error { return errNotOffered }

// SetConfig refuses: the protocol feature is not offered.
func (*QueueDevice) SetConfig(uint32, []byte) error { return errNotOffered }

// SetErr closes the error eventfd: a queue that stops is told of in the log alone.
func (*QueueDevice) SetErr(_, fd int) error {
	scm.Close(fd)
	return nil
}

// StartQueue opens the queue and starts its goroutine.
func (d *QueueDevice) StartQueue(v Vring) (err error) {
	w := &d.workers[v.Index]
	scm.Close(v.Err)
	w.kick = os.NewFile(uintptr(v.Kick), "kick") // nil if there is none
	w.call.Store(os.NewFile(uintptr(v.Call), "call"))
	w.callDue.Store(false)
	if w.kick == nil {
		err = errors.New("no kick eventfd: a queue that is to be polled is not supported")
	} else if w.queue, err = d.Open(v); err == nil {
		w.done = make(chan struct{})
		dma.Go(func() {
			defer close(w.done)
			if err := w.run(v.Running); err != nil && d.Log != nil {
				d.Log.Error("queue stopped", "queue", v.Index, "err", err)
			}
		})
		return nil
	}
	_ = w.kick.Close()
	_ = w.call.Load().Close()
	return err
}

// StopQueue waits until the goroutine has ended.
func (d *QueueDevice) StopQueue(index int) (base uint32, err error) {
	w := &d.workers[index]
	if w.done == nil {
		return 0, fmt.Errorf("queue %d is not started", index)
	}
	_ = w.kick.Close()
	_ = w.call.Load().Close() // a write may wait in it
	<-w.done
	w.done = nil
	defer w.queue.Close()
	return w.queue.Base(), nil
}

// SetCall has the queue's goroutine use another call eventfd, and fire it once.
func (d *QueueDevice) SetCall(index, fd int) error {
	w := &d.workers[index]
	_ = w.call.Swap(os.NewFile(uintptr(fd), "call")).Close()
	w.callDue.Store(true)
	return w.wake()
}

// EnableQueue lets the queue's goroutine go on, or has it wait.
func (d *QueueDevice) EnableQueue(index int, on bool) error {
	w := &d.workers[index]
	w.enabled.Store(on)
	return w.wake()
}

// Reset forgets the status.
func (d *QueueDevice) Reset() error { return d.SetStatus(0) }

// MemoryChanged does nothing: queues whose ring has moved were stopped.
func (*QueueDevice) MemoryChanged() error { return nil }

// Disconnected forgets the status.
func (d *QueueDevice) Disconnected() { d.status = 0 }

// wake has a goroutine that waits for a kick look at what was changed before.
func (w *worker) wake() error {
	if w.done == nil {
		return nil
	}
	return w.kick.SetReadDeadline(time.Unix(1, 0))
}

// run works until kick is closed or the queue has an error. It looks at the queue at its first
// kick, or now.
func (w *worker) run(now bool) error {
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
		if w.callDue.Swap(false) {
			w.fire()
		}
		var count [8]byte
		switch _, err := w.kick.Read(count[:]); {
		case err == nil:
			started = true
		case errors.Is(err, os.ErrDeadlineExceeded):
			_ = w.kick.SetReadDeadline(time.Time{})
		default:
			return nil
		}
	}
}

// fire sends a call, if there is an eventfd.
func (w *worker) fire() {
	var one [8]byte
	binary.NativeEndian.PutUint64(one[:], 1)
	_, _ = w.call.Load().Write(one[:]) // a nil or closed file is an error, and no call
}
