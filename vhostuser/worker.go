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

// Worker calls a function for each kick of a started queue, on a separate goroutine, where a fault
// in mapped memory is a panic (for dma.Recover). It owns the queue's eventfds. The owner calls all
// methods except Call on the goroutine of Serve, like the methods of a Device, also while the
// function runs.
//
// A frontend that never reads its calls blocks only its own queue; Stop still works.
type Worker struct {
	kicks
}

// StartWorker starts a Worker for the queue v, which StartQueue received; enabled is the queue's
// present state. The worker calls kicked at the first kick, or at once if v.Running, and then for
// each later kick; several kicks may lead to one call. While the queue is disabled, the worker
// postpones the call. Stop waits for kicked, so kicked must process a bounded part of the ring, and
// return true if chains are left: then the worker calls it again.
//
// v's descriptors belong to the Worker, also after an error. A queue without a kick eventfd is an
// error: the Worker cannot poll a ring.
func StartWorker(v Vring, enabled bool, kicked func(w *Worker) (more bool)) (*Worker, error) {
	w := new(Worker)
	if err := w.take(v, enabled); err != nil {
		return nil, err
	}
	w.start(func() { w.run(v.Running, kicked) })
	return w, nil
}

// Call calls the driver, if there is a call eventfd. Only kicked may use it.
func (w *Worker) Call() { w.fire() }

// SetCall makes the worker use another call eventfd, -1 for none, and fire it once, because an
// earlier call may have gone to the old one.
func (w *Worker) SetCall(fd int) error { return w.setCall(fd) }

// Enable lets the worker run, or makes it wait.
func (w *Worker) Enable(on bool) error { return w.enable(on) }

// Stop ends the worker and closes its eventfds. When it returns, kicked is not running, and the
// worker does not call it again.
func (w *Worker) Stop() { w.stop() }

func (w *Worker) run(now bool, kicked func(w *Worker) bool) {
	for due := now; ; {
		if due && w.enabled.Load() {
			due = kicked(w)
			if w.kick.SetReadDeadline(time.Time{}) != nil {
				return // kick is closed: end, even if kicked always reports more chains
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

// kicks are the eventfds of a started queue, and the goroutine that waits for its kicks. Only the
// goroutine of Serve writes the fields that are not atomic, most of them before it starts the other
// goroutine.
type kicks struct {
	kick    *os.File // the kick eventfd; stop closes it, which ends the goroutine
	call    atomic.Pointer[os.File]
	callDue atomic.Bool // SetCall has replaced the call eventfd: wait fires the new one
	enabled atomic.Bool
	done    chan struct{} // closed when the goroutine has ended
}

// take makes k the owner of the eventfds of queue v. If it returns an error, it has closed them.
func (k *kicks) take(v Vring, enabled bool) error {
	scm.Close(v.Err)
	k.kick = os.NewFile(uintptr(v.Kick), "kick") // nil if v.Kick is -1
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
	_ = k.call.Load().Close() // ends a blocked write to the eventfd
}

// start starts the goroutine.
func (k *kicks) start(run func()) {
	k.done = make(chan struct{})
	dma.Go(func() {
		defer close(k.done)
		run()
	})
}

// stop closes the eventfds and waits until the goroutine has ended.
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

// wake interrupts the goroutine's wait for a kick, so that it sees the changes to callDue and
// enabled.
func (k *kicks) wake() error { return k.kick.SetReadDeadline(time.Unix(1, 0)) }

// wait waits for a kick, or for wake. It returns an error if stop has closed the kick, or if the
// kick is no eventfd; then the goroutine ends.
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
	_, _ = k.call.Load().Write(one[:]) // on a nil or closed file Write only returns an error
}
