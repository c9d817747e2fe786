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

// A testCase must leave all memory of the GPU free; in pagingCases the mailbox may stay.
type testCase struct {
	name string
	run  func(t *T)
}

// T collects the errors of a test. Its methods may only be called on the test's goroutine.
type T struct {
	gpu  gpudriver.GPU
	step string
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

func (t *T) note(err error) {
	if err != nil && t.step != "" {
		err = fmt.Errorf("%s: %w", t.step, err)
	}
	if err != nil {
		t.errs = append(t.errs, err)
	}
}

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

func (t *T) refused(call string, got error, want unix.Errno) {
	if !errors.Is(got, want) {
		t.note(fmt.Errorf("%s: %v, and not %v", call, got, want))
	}
}

func (t *T) unmap(b []byte) { t.note(unix.Munmap(b)) }

// must takes the results of a call, and returns a function that ends test t if err is not nil, and else returns v:
// f := must(os.Open(name))(t)
func must[V any](v V, err error) func(t *T) V {
	return func(t *T) V {
		t.ok(err)
		return v
	}
}

func errOf[V any](_ V, err error) error { return err }

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

func wait(what string, done func() bool) error {
	for start := time.Now(); !done(); runtime.Gosched() {
		if time.Since(start) > patience {
			return fmt.Errorf("not after %v: %s", patience, what)
		}
	}
	return nil
}
