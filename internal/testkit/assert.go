package testkit

import (
	"errors"
	"fmt"
	"strings"
)

// T has the methods of a test that the checks need.
type T interface {
	Helper()
	Errorf(format string, args ...any)
	Fatal(args ...any)
}

// OK ends the test if err is not nil.
func OK(t T, err error) {
	if err != nil {
		t.Helper() // only for an error: some benchmarks measure less time than Helper takes
		t.Fatal(err)
	}
}

// Must returns a function that ends the test if err is not nil, and otherwise returns v:
//
//	f := testkit.Must(os.Open(name))(t)
func Must[V any](v V, err error) func(T) V {
	return func(t T) V {
		t.Helper()
		OK(t, err)
		return v
	}
}

// ErrorSays fails the test, without ending it, unless the error's text contains all of the parts. Without
// parts it checks nothing.
func ErrorSays(t T, err error, parts ...string) {
	t.Helper()
	for _, part := range parts {
		if err == nil || !strings.Contains(err.Error(), part) {
			t.Errorf("error %v, want one that says %q", err, part)
		}
	}
}

// ErrorIs fails the test, without ending it, unless the error is target (errors.Is). what, if given, is a format and
// its arguments: the beginning of the message.
func ErrorIs(t T, err, target error, what ...any) {
	if errors.Is(err, target) {
		return
	}
	t.Helper()
	done := "error"
	if len(what) > 0 {
		done = fmt.Sprintf(what[0].(string), what[1:]...)
	}
	t.Errorf("%s: %v, want %v", done, err, target)
}

// NoError fails the test, without ending it, if err is not nil.
func NoError(t T, err error) {
	if err != nil {
		t.Helper()
		t.Errorf("%v", err)
	}
}

// Err returns the error of a call with another result, which does not matter.
func Err[V any](_ V, err error) error { return err }

// Equal fails the test, without ending it, if got is not want.
func Equal[V comparable](t T, what string, got, want V) {
	if got != want {
		t.Helper()
		t.Errorf("%s: %v, want %v", what, got, want)
	}
}
