package vhostuser

import (
	"encoding/binary"
	"errors"
	"os"
	"sync/atomic"
	"time"

	"vnic.dev/vnic/dma"
	"vnic.dev/vnic/internal/scm"
)

// Worker calls a function for each kick of a started queue, on a goroutine of its own, on which a fault in mapped
// memory is a panic (for dma.Recover). It owns the queue's eventfds. Its methods but Call are for the goroutine of
// Serve, as those of a Device are, and may be called while the function runs.
//
// A frontend that never reads its calls holds up its own queue alone, and not Stop.
type Worker struct {
	kicks
}

// StartWorker begins with a queue that StartQueue was given; enabled says whether it is. kicked is called at the first
// kick, or at once if v.Running, and then for each kick that has come since, several at once as one; while the queue is
// disabled, not before it is enabled again. What stops the queue waits for it, so it is to look at a bounded part of
// the ring, and returns true if it has left something: then it is called again.
//
// v's descriptors are the Worker's, with an error too: a queue without a kick eventfd is to be polled, which is not
// supported.
func StartWorker(v Vring, enabled bool, kicked func(w *Worker) (more bool)) (*Worker, error) {
	w := new(Worker)
	if err := w.take(v, enabled); err != nil {
		return nil, err
	}
	w.start(func() { w.run(v.Running, kicked) })
	return w, nil
}

// Call calls the driver, if it wants calls. It is for the function that is called for kicks.
func (w *Worker) Call() { w.fire() }

// SetCall has the worker use another call eventfd, -1 for none, and fire it once, as a call that was due may have gone
// to the old one.
func (w *Worker) SetCall(fd int) error { return w.setCall(fd) }

// Enable lets the worker go on, or has it wait.
func (w *Worker) Enable(on bool) error { return w.enable(on) }

// Stop ends the worker and closes its eventfds. When it returns, the function does not run, and is not called again.
func (w *Worker) Stop() { w.stop() }

func (w *Worker) run(now bool, kicked func(w *Worker) bool) {
	for due := now; ; {
		if due && w.enabled.Load() {
			due = kicked(w)
			if w.kick.SetReadDeadline(time.Time{}) != nil {
				return // closed: a driver that always has more does not keep us
			}
			if due {
				continue
			}
		}
		again, err := w.wait()
		if err != nil {
			return
		}
		due = due || again
	}
}

// kicks are the eventfds of a started queue, and the goroutine that waits for its kicks. All but the atomics is of the
// goroutine of Serve, or set before the other starts.
type kicks struct {
	kick    *os.File // closed: stop
	call    atomic.Pointer[os.File]
	callDue atomic.Bool // the call was replaced: fire the new one
	enabled atomic.Bool
	done    chan struct{} // closed when the goroutine has ended
}

// take takes a queue's eventfds, which are closed if there is an error.
func (k *kicks) take(v Vring, enabled bool) error {
	scm.Close(v.Err)
	k.kick = os.NewFile(uintptr(v.Kick), "kick") // nil if there is none
	k.call.Store(os.NewFile(uintptr(v.Call), "call"))
	k.enabled.Store(enabled)
	if k.kick == nil {
		k.close()
		return errors.New("no kick eventfd: a queue that is to be polled is not supported")
	}
	return nil
}

func (k *kicks) close() {
	_ = k.kick.Close()
	_ = k.call.Load().Close() // a write may wait in it
}

// start starts the goroutine.
func (k *kicks) start(run func()) {
	k.done = make(chan struct{})
	dma.Go(func() {
		defer close(k.done)
		run()
	})
}

// stop waits until the goroutine has ended.
func (k *kicks) stop() {
	k.close()
	<-k.done
}

func (k *kicks) setCall(fd int) error {
	_ = k.call.Swap(os.NewFile(uintptr(fd), "call")).Close()
	k.callDue.Store(true)
	return k.wake()
}

func (k *kicks) enable(on bool) error {
	k.enabled.Store(on)
	return k.wake()
}

// wake has a goroutine that waits for a kick look at what was changed before.
func (k *kicks) wake() error { return k.kick.SetReadDeadline(time.Unix(1, 0)) }

// wait waits for a kick, or for wake. An error is the end: the kick is closed, or no eventfd.
func (k *kicks) wait() (kicked bool, err error) {
	if k.callDue.Swap(false) {
		k.fire()
	}
	var count [8]byte
	switch _, err := k.kick.Read(count[:]); {
	case err == nil:
		return true, nil
	case errors.Is(err, os.ErrDeadlineExceeded):
		_ = k.kick.SetReadDeadline(time.Time{})
		return false, nil
	default:
		return false, err
	}
}

// fire sends a call, if there is an eventfd.
func (k *kicks) fire() {
	var one [8]byte
	binary.NativeEndian.PutUint64(one[:], 1)
	_, _ = k.call.Load().Write(one[:]) // a nil or closed file is an error, and no call
}
