// Package undo collects the steps that undo what a function has done.
package undo

import "errors"

// Stack is a list of steps. The zero value is empty.
type Stack []func() error

// Add adds a step, which All runs before the earlier ones.
func (s *Stack) Add(step func() error) { *s = append(*s, step) }

// All takes all steps from the stack and runs them, the last one first. It goes on after an error, and returns all
// errors.
func (s *Stack) All() error {
	steps := *s
	*s = nil
	var errs []error
	for i := len(steps) - 1; i >= 0; i-- {
		errs = append(errs, steps[i]())
	}
	return errors.Join(errs...)
}
