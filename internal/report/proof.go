package report

import (
	"errors"
	"fmt"
)

// Findings are what a report shows that it must not.
type Findings []error

// If adds a finding.
func (f *Findings) If(bad bool, format string, args ...any) {
	if bad {
		*f = append(*f, fmt.Errorf(format, args...))
	}
}

// Within adds the findings of a part of the report, each with the part's name before it.
func (f *Findings) Within(name string, part Findings) {
	for _, err := range part {
		*f = append(*f, fmt.Errorf("%s: %w", name, err))
	}
}

// Err is noProof with all findings; nil: there are none.
func (f Findings) Err(noProof error) error {
	if err := errors.Join(f...); err != nil {
		return fmt.Errorf("%w:\n%w", noProof, err)
	}
	return nil
}

// Prove is noProof with the findings of all parts of a report, each with its part's name before it, as find returns
// both.
func Prove[T any](noProof error, parts []T, find func(*T) (name string, found Findings)) error {
	var f Findings
	for i := range parts {
		f.Within(find(&parts[i]))
	}
	return f.Err(noProof)
}
