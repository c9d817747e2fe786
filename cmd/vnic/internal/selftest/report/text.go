package report

import (
	"fmt"
	"strings"

	"vnic.dev/vnic/cmd/vnic/internal/selftest/expect"
	"vnic.dev/vnic/cmd/vnic/internal/selftest/ktap"
	"vnic.dev/vnic/cmd/vnic/internal/selftest/results"
)

// device names what was tested.
func device(run *results.Run) string {
	s := run.Model + " on " + run.Device
	if run.Device == "vnic" && run.Queues == 1 { // QEMU's has one always
		s += ", 1 queue"
	}
	return s
}

// reason is an expectation's class, evidence and text.
func reason(e *expect.Entry) string {
	var parts []string
	if e.Class != "" {
		parts = append(parts, string(e.Class))
	}
	if e.Evidence != "" {
		parts = append(parts, e.Evidence)
	}
	if e.Text != "" {
		parts = append(parts, e.Text)
	}
	return strings.Join(parts, ": ")
}

// notApplied says why a program was not run in a column.
func notApplied(p *results.Program) string {
	return "not run: does not apply to this kernel's tests: " + strings.Join(p.Left, ", ")
}

// describe says in a line what a case came to.
func describe(j *expect.Judged) string {
	result := string(j.Result)
	if result == "" {
		result = "no result"
	}
	switch {
	case j.Verdict == expect.AsExpected && j.Result != ktap.Pass:
		return fmt.Sprintf("%s, as expected: %s", result, reason(j.Expected))
	case j.Verdict == expect.Unjudged || j.Verdict == expect.AsExpected:
		return result
	case j.Complaint() || j.Verdict == expect.Unproved:
		return fmt.Sprintf("%s: %s", j.Verdict, j.Note)
	case j.Verdict == expect.Missing:
		return string(j.Verdict) + ": " + j.Note
	}
	s := fmt.Sprintf("%s: %s", j.Verdict, result)
	if j.Note != "" {
		s += ", " + j.Note
	}
	return s
}
