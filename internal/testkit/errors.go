package testkit

import (
	"errors"
	"fmt"
)

// Err is the error of a call whose other result does not matter.
func Err[V any](_ V, err error) error { return err }

// ErrorIs fails the test, which goes on, if err is not want; format and args say what was done.
func ErrorIs(t T, err, want error, format string, args ...any) {
	if !errors.Is(err, want) {
		t.Helper()
		t.Errorf("%s: %v, want %v", fmt.Sprintf(format, args...), err, want)
	}
}

// NoError fails the test, which goes on, at an error: OK for a goroutine that is not the test's.
func NoError(t T, err error) {
	if err != nil {
		t.Helper()
		t.Errorf("%v", err)
	}
}
