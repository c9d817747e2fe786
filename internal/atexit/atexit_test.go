package atexit

import "testing"

func TestWhatIsDoneIsNotDoneAgain(t *testing.T) {
	var a, b int
	Register(func() { a++ })
	done := Register(func() { b++ })
	done()
	Run()
	Run()
	if a != 1 || b != 0 {
		t.Errorf("called %d times, and %d times what was done already", a, b)
	}
}
