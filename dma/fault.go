package dma

import (
	"errors"
	"fmt"
	"runtime"
	"runtime/debug"
)

// ErrFault is what every *FaultError unwraps to.
var ErrFault = errors.New("memory fault")

// FaultError says that a file could not be read or written through its mapping (SIGBUS): it was truncated, or there is
// no memory for its pages.
type FaultError struct {
	File *File
	Off  uint64 // in the file
}

// Error implements error.
func (e *FaultError) Error() string {
	return fmt.Sprintf("file %v: fault at offset %#x of %#x: truncated by its owner, or out of memory: %v", e.File, e.Off,
		e.File.Size(), ErrFault)
}

// Unwrap returns ErrFault.
func (e *FaultError) Unwrap() error { return ErrFault }

// Go starts f on a goroutine on which a fault in mapped memory is a panic, which Recover turns into an error, and not
// the end of the process. The caller waits for f in its own way.
func Go(f func()) {
	go func() {
		Guard()
		f()
	}()
}

// Guard makes the calling goroutine one on which Recover works, for goroutines that somebody else starts. Enter does
// so too; it costs a nanosecond.
func Guard() { debug.SetPanicOnFault(true) } // per goroutine

// Recover is deferred, as `defer dma.Recover(&err)`, by a function that touches mapped memory, on a goroutine started
// by Go, marked by Guard, or inside a Space. If the function faults inside a mapped File, *err becomes the
// *FaultError, the file is dead, and every space that maps it is told. Any other panic goes on.
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

// FaultAddr is the address of the fault in mapped memory that has panicked with v, as recover returns it, on a goroutine
// as Recover has it; false: v is something else.
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

// markDead marks the file dead for a fault at off and tells the spaces that have it. All callers get
// the first fault.
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

// reportFault closes Faulted.
func (s *Space) reportFault(fe *FaultError) {
	s.faultMu.Lock()
	defer s.faultMu.Unlock()
	if s.fault == nil {
		s.fault = fe
		close(s.faulted)
	}
}

// clearFault opens a new Faulted if the file at fault is not mapped here any more. Under mu, so there
// is no Add meanwhile.
func (s *Space) clearFault() {
	s.faultMu.Lock() // a file that dies after we looked at it waits here to report it
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

// Faulted returns a channel that is closed once a file mapped here has faulted. When the file is gone from the space,
// there is a new channel.
func (s *Space) Faulted() <-chan struct{} {
	s.faultMu.Lock()
	defer s.faultMu.Unlock()
	return s.faulted
}

// FaultErr returns the *FaultError of a file mapped here, or nil.
func (s *Space) FaultErr() error {
	s.faultMu.Lock()
	defer s.faultMu.Unlock()
	if s.fault == nil {
		return nil
	}
	return s.fault
}
