package dma

import (
	"errors"
	"fmt"
	"runtime"
	"runtime/debug"
)

// ErrFault is what a *FaultError wraps.
var ErrFault = errors.New("memory fault")

// FaultError means that a file could not be read or written through its mapping (SIGBUS), usually because it
// was truncated, or there is no memory for its pages.
type FaultError struct {
	File *File
	Off  uint64 // of the faulting byte
}

// Error implements error.
func (e *FaultError) Error() string {
	return fmt.Sprintf("file %v: fault at offset %#x of %#x: truncated by its owner, or out of memory: %v", e.File, e.Off,
		e.File.Size(), ErrFault)
}

// Unwrap returns ErrFault.
func (e *FaultError) Unwrap() error { return ErrFault }

// Go starts f on a new goroutine, where a fault in mapped memory becomes a panic that Recover turns into an
// error; without Guard a fault ends the process.
func Go(f func()) {
	go func() {
		Guard()
		f()
	}()
}

// Guard makes Recover work on the calling goroutine. Space.Enter calls it, too.
func Guard() { debug.SetPanicOnFault(true) } // per goroutine

// Recover turns a memory fault into an error. A function that touches mapped memory defers it, as `defer
// dma.Recover(&err)`, on a goroutine that Go started, that called Guard, or that is inside a Space. After a
// fault inside a mapped File, Recover sets *err to the *FaultError, marks the file dead, and reports the fault
// to the spaces that map it. It re-raises any other panic.
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

// FaultAddr returns the address of a memory fault from v, the value that recover returned; ok is false if v is
// no memory fault.
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

// markDead marks the file dead after a fault at off, and returns the error. If the file has faulted or was
// closed before, it only returns the earlier error.
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

// reportFault records the fault and closes faulted, unless the space has a fault already.
func (s *Space) reportFault(fe *FaultError) {
	s.faultMu.Lock()
	defer s.faultMu.Unlock()
	if s.fault == nil {
		s.fault = fe
		close(s.faulted)
	}
}

// clearFault makes a new Faulted channel if the space maps no dead file any more. The caller holds mu.
func (s *Space) clearFault() {
	s.faultMu.Lock() // a file that dies from now on is reported after this function
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

// Faulted returns a channel that is closed once a file mapped in the space has faulted. Once the space maps no
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
