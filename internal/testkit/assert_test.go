package testkit

import (
	"errors"
	"fmt"
	"io"
	"testing"
)

type judge struct{ failed string }

func (j *judge) Helper()                           {}
func (j *judge) Errorf(format string, args ...any) { j.failed += fmt.Sprintf(format, args...) + "\n" }
func (j *judge) Fatal(args ...any)                 { j.failed += fmt.Sprint(args...) + "\n" }

func TestChecksFailATest(t *testing.T) {
	gone := fmt.Errorf("gone: %w", io.EOF)
	for want, check := range map[string]func(T){
		"gone: EOF\n": func(t T) { OK(t, gone) },
		"closed\n":    func(t T) { Equal(t, "the value", Must(7, errors.New("closed"))(t), 7) },
		"error <nil>, want one that says \"a\"\n":     func(t T) { ErrorSays(t, nil, "a") },
		"error gone: EOF, want one that says \"a\"\n": func(t T) { ErrorSays(t, gone, "EOF", "a") },
		"error: gone: EOF, want unexpected EOF\n":     func(t T) { ErrorIs(t, gone, io.ErrUnexpectedEOF) },
		"it: 1, want 2\n":                             func(t T) { Equal(t, "it", 1, 2) },
		"": func(t T) {
			OK(t, nil)
			ErrorSays(t, gone, "gone", "EOF")
			ErrorIs(t, gone, io.EOF)
			Equal(t, "it", 1, 1)
		},
	} {
		var j judge
		if check(&j); j.failed != want {
			t.Errorf("the test fails with %q, not %q", j.failed, want)
		}
	}
}
