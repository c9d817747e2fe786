package dma

import (
	"errors"
	"fmt"
	"runtime"
	"runtime/debug"
)

// ErrFault is the error that a *FaultError wraps.
var ErrFault = errors.New("memory fault")

// FaultError means that a file could not be accessed through its mapping (SIGBUS): it was truncated, memory is
// lacking, or its disk has failed.
type FaultError struct {
	File *File
	Off  uint64 // offset in File of the faulting byte
}

// Error implements error.
func (e *FaultError) Error() string {
	return fmt.Sprintf("file %v: fault at offset %#x of %#x: truncated by its owner, or out of memory: %v", e.File, e.Off,
		e.File.Size(), ErrFault)
}

// Unwrap returns ErrFault.
func (e *FaultError) Unwrap() error { return ErrFault }

// Go starts f on a new goroutine on which Recover works.
func Go(f func()) {
	go func() {
		Guard()
		f()
	}()
}

// Guard makes Recover work on the calling goroutine; otherwise a fault ends the process. Space.Enter calls it,
// too.
func Guard() { debug.SetPanicOnFault(true) } // the setting is per goroutine

// Recover turns a fault in a mapped File into an error. A function that accesses mapped memory defers it, as `defer
// dma.Recover(&err)`. After such a fault it sets *err to the *FaultError of the file's first fault, and marks the
// file dead. Other panics continue.
func Recover(err *error) {
	v := recover()
	if v == nil {
		return
	}
	if addr, ok := FaultAddr(v); ok {
		if f, off := fileAt(addr); f != nil {
			*err = f.markDead(off)
			return
		}
	}
	panic(v)
}

// FaultAddr returns the address of a memory fault from recover's value v; ok is false for other panics.
func FaultAddr(v any) (addr uintptr, ok bool) {
	e, ok := v.(interface {
		runtime.Error
		Addr() uintptr
	})
	if !ok {
		return 0, false
	}
	return e.Addr(), true
}

// markDead marks the file dead after a fault at off, reports the fault to the spaces that map the file, and returns
// the *FaultError. If the file has faulted or was closed before, markDead only returns the earlier error.
func (f *File) markDead(off uint64) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	fe := &FaultError{File: f, Off: off}
	if !f.gone.CompareAndSwap(nil, &gone{err: fe, fault: fe}) {
		return f.gone.Load().err
	}
	for s := range f.spaces {
		s.reportFault(fe)
	}
	return fe
}

func (s *Space) reportFault(fe *FaultError) {
	s.faultMu.Lock()
	defer s.faultMu.Unlock()
	if s.fault == nil {
		s.fault = fe
		close(s.faulted)
	}
}

// clearFault forgets the space's fault; if the space still maps a dead file, it keeps a fault of such a file. The
// caller holds s.mu.
func (s *Space) clearFault() {
	s.faultMu.Lock() // a fault that happens now is reported after this function
	defer s.faultMu.Unlock()
	if s.fault == nil {
		return
	}
	for f := range s.using {
		if f.Dead() {
			s.fault = f.gone.Load().fault
			return
		}
	}
	s.fault, s.faulted = nil, make(chan struct{})
}

// Faulted returns a channel that is closed once a file that the space maps has faulted. Once the space maps no
// faulted file any more, Faulted returns a new channel.
func (s *Space) Faulted() <-chan struct{} {
	s.faultMu.Lock()
	defer s.faultMu.Unlock()
	return s.faulted
}

// FaultErr returns the *FaultError of a file that the space maps, or nil.
func (s *Space) FaultErr() error {
	s.faultMu.Lock()
	defer s.faultMu.Unlock()
	if s.fault == nil {
		return nil
	}
	return s.fault
}
