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

// Within adds findings of a part, which of names.
func (f *Findings) Within(of string, part Findings) {
	for _, err := range part {
		*f = append(*f, fmt.Errorf("%s: %w", of, err))
	}
}

// Err is noProof with all findings; nil: there are none.
func (f Findings) Err(noProof error) error {
	if err := errors.Join(f...); err != nil {
		return fmt.Errorf("%w:\n%w", noProof, err)
	}
	return nil
}
