package report

import (
	"errors"
	"fmt"
)

// Findings has an error for each contradiction between a report and its proof.
type Findings []error

// If adds a finding if bad is true.
func (f *Findings) If(bad bool, format string, args ...any) {
	if bad {
		*f = append(*f, fmt.Errorf(format, args...))
	}
}

// Within adds the findings of a part of the report, with the part's name before each.
func (f *Findings) Within(name string, part Findings) {
	for _, err := range part {
		*f = append(*f, fmt.Errorf("%s: %w", name, err))
	}
}

// Err returns noProof with all findings, or nil if there are none.
func (f Findings) Err(noProof error) error {
	if err := errors.Join(f...); err != nil {
		return fmt.Errorf("%w:\n%w", noProof, err)
	}
	return nil
}

// Prove returns noProof with the findings of all parts, or nil if there are none. find returns a part's name and
// findings.
func Prove[T any](noProof error, parts []T, find func(*T) (name string, found Findings)) error {
	var f Findings
	for i := range parts {
		f.Within(find(&parts[i]))
	}
	return f.Err(noProof)
}
