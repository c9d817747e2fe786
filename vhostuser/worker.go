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

// Worker calls a function after kicks of a started queue (when exactly: StartWorker), on a separate goroutine, where
// a fault in mapped memory is a panic (for dma.Recover). It owns the queue's eventfds. The methods except Call are for
// the goroutine of Serve.
type Worker struct {
	kick    *os.File // the kick eventfd; Stop closes it, which ends the goroutine
	call    atomic.Pointer[os.File]
	callDue atomic.Bool // the next wait fires the call eventfd
	enabled atomic.Bool
	done    chan struct{} // closed when the goroutine has ended
}

// StartWorker starts a Worker for the queue v, enabled or not. While it is enabled, the worker calls kicked at the
// first kick, or at once if v.Running, and then after kicks; several kicks may lead to one call, and a kick that
// comes while the worker is disabled counts once it is enabled. kicked must process a bounded part of the ring, and
// return true if chains are left: then the worker calls it again.
//
// StartWorker takes v's descriptors over: it closes v.Err, and after an error all three. A queue without a kick
// eventfd is an error.
func StartWorker(v Vring, enabled bool, kicked func(w *Worker) (more bool)) (*Worker, error) {
	scm.Close(v.Err)
	w := &Worker{kick: os.NewFile(uintptr(v.Kick), "kick"), done: make(chan struct{})} // kick: nil if v.Kick is -1
	w.call.Store(os.NewFile(uintptr(v.Call), "call"))
	w.enabled.Store(enabled)
	if w.kick == nil {
		w.close()
		return nil, errors.New("no kick eventfd: a queue that is to be polled is not supported")
	}
	dma.Go(func() {
		defer close(w.done)
		w.run(v.Running, kicked)
	})
	return w, nil
}

func (w *Worker) close() {
	_ = w.kick.Close()
	_ = w.call.Load().Close() // ends a blocked write to the eventfd
}

// Call signals the call eventfd, if there is one.
func (w *Worker) Call() {
	var one [8]byte
	binary.NativeEndian.PutUint64(one[:], 1)
	_, _ = w.call.Load().Write(one[:]) // on a nil or closed file Write only returns an error
}

// SetCall replaces the call eventfd by fd, -1 for none, which the Worker then owns. The worker fires it once, before
// its next wait for a kick.
func (w *Worker) SetCall(fd int) error {
	_ = w.call.Swap(os.NewFile(uintptr(fd), "call")).Close()
	w.callDue.Store(true)
	return w.wake()
}

// Enable lets the worker call its function, or makes it wait once a call that is running has returned.
func (w *Worker) Enable(on bool) error {
	w.enabled.Store(on)
	return w.wake()
}

// Stop closes the eventfds, and returns when the worker has ended: a call of its function that is running ends first.
func (w *Worker) Stop() {
	w.close()
	<-w.done
}

func (w *Worker) run(now bool, kicked func(w *Worker) bool) {
	for due := now; ; {
		if due && w.enabled.Load() {
			due = kicked(w)
			if w.kick.SetReadDeadline(time.Time{}) != nil {
				return // kick is closed
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

// wake interrupts the goroutine's wait for a kick.
func (w *Worker) wake() error { return w.kick.SetReadDeadline(time.Unix(1, 0)) }

// wait fires a call that is due, and waits for a kick (true) or for wake (false). It returns an error if kick cannot
// be read, as after Stop.
func (w *Worker) wait() (kicked bool, err error) {
	if w.callDue.Swap(false) {
		w.Call()
	}
	var count [8]byte
	switch _, err := w.kick.Read(count[:]); {
	case err == nil:
		return true, nil
	case errors.Is(err, os.ErrDeadlineExceeded):
		_ = w.kick.SetReadDeadline(time.Time{})
		return false, nil
	default:
		return false, err
	}
}
