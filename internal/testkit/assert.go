package testkit

import (
	"errors"
	"fmt"
	"strings"
)

// A T is what the checks need of a test: *testing.T, *testing.B, *testing.F, *rapid.T and kin have it.
type T interface {
	Helper()
	Errorf(format string, args ...any)
	Fatal(args ...any)
}

// OK ends the test at an error.
func OK(t T, err error) {
	if err != nil {
		t.Helper() // not before: it costs more than what some benchmarks measure
		t.Fatal(err)
	}
}

// Must is for a call that gives a value and an error: the function that it returns ends the test at
// the error, else it returns the value. f := testkit.Must(os.Open(name))(t)
func Must[V any](v V, err error) func(T) V {
	return func(t T) V {
		t.Helper()
		OK(t, err)
		return v
	}
}

// ErrorSays fails the test, which goes on, unless the error's text has all of the parts.
func ErrorSays(t T, err error, parts ...string) {
	t.Helper()
	for _, part := range parts {
		if err == nil || !strings.Contains(err.Error(), part) {
			t.Errorf("error %v, want one that says %q", err, part)
		}
	}
}

// ErrorIs fails the test, which goes on, unless the error is target (errors.Is). what, if it is given, is
// a format and its arguments, and says what was done.
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

// NoError fails the test, which goes on, at an error: OK for a goroutine that is not the test's.
func NoError(t T, err error) {
	if err != nil {
		t.Helper()
		t.Errorf("%v", err)
	}
}

// Err is the error of a call whose other result does not matter.
func Err[V any](_ V, err error) error { return err }

// Equal fails the test, which goes on, if what it got of a thing is not what it wants.
func Equal[V comparable](t T, what string, got, want V) {
	if got != want {
		t.Helper()
		t.Errorf("%s: %v, want %v", what, got, want)
	}
}
