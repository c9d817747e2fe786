package undo

import (
	"errors"
	"testing"

	"vnic.dev/vnic/internal/testkit"
)

func TestStepsRunBackwards(t *testing.T) {
	var s Stack
	ran, errStep := "", errors.New("step b")
	s.Add(func() error { ran += "a"; return nil })
	s.Add(func() error { ran += "b"; return errStep })
	s.Add(func() error { ran += "c"; return nil })
	testkit.ErrorIs(t, s.All(), errStep)
	testkit.OK(t, s.All())
	testkit.Equal(t, "steps", ran, "cba")
}
