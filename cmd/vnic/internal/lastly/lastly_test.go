package lastly

import "testing"

func TestWhatIsDoneIsNotDoneAgain(t *testing.T) {
	var a, b int
	Do(func() { a++ })
	done := Do(func() { b++ })
	done()
	Run()
	Run()
	if a != 1 || b != 0 {
		t.Errorf("called %d times, and %d times what was done already", a, b)
	}
}
