package main

import (
	"errors"
	"fmt"
	"runtime"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/internal/gpudriver"
)

// testCase is a test of the driver. It must leave all memory of the GPU free.
type testCase struct {
	name string
	run  func(t *T)
}

// T collects the errors of a test. Its methods may only be called on the test's goroutine.
type T struct {
	gpu  gpudriver.GPU
	step string // named in errors
	errs []error
}

func run(f func(t *T)) error {
	t := &T{}
	done := make(chan struct{})
	go func() {
		defer close(done)
		f(t)
	}()
	<-done
	return errors.Join(t.errs...)
}

// note adds an error, if there is one; the test goes on.
func (t *T) note(err error) {
	if err != nil && t.step != "" {
		err = fmt.Errorf("%s: %w", t.step, err)
	}
	if err != nil {
		t.errs = append(t.errs, err)
	}
}

// ok ends the test, with its deferred functions, if there is an error.
func (t *T) ok(err error) {
	if err != nil {
		t.note(err)
		runtime.Goexit()
	}
}

func (t *T) require(holds bool, format string, args ...any) {
	if !holds {
		t.ok(fmt.Errorf(format, args...))
	}
}

// refused adds an error unless a call failed with errno want.
func (t *T) refused(call string, got error, want unix.Errno) {
	if !errors.Is(got, want) {
		t.note(fmt.Errorf("%s: %v, and not %v", call, got, want))
	}
}

func (t *T) unmap(b []byte) { t.note(unix.Munmap(b)) }

// must returns a function that ends test t if the call failed, and else returns its value: f :=
// must(os.Open(name))(t)
func must[V any](v V, err error) func(t *T) V {
	return func(t *T) V {
		t.ok(err)
		return v
	}
}

func errOf[V any](_ V, err error) error { return err }

// beside runs do, and meanwhile calls again repeatedly on another goroutine, until do has returned or again
// fails.
func (t *T) beside(again func() error, do func()) {
	var end atomic.Bool
	done := make(chan error, 1)
	go func() {
		var err error
		for err == nil && !end.Load() {
			err = again()
		}
		done <- err
	}()
	func() {
		defer func() {
			end.Store(true)
			t.note(<-done)
		}()
		do()
	}()
	if len(t.errs) > 0 {
		runtime.Goexit()
	}
}

// wait polls done until it returns true; after patience it returns an error that names what.
func wait(what string, done func() bool) error {
	for start := time.Now(); !done(); runtime.Gosched() {
		if time.Since(start) > patience {
			return fmt.Errorf("not after %v: %s", patience, what)
		}
	}
	return nil
}
