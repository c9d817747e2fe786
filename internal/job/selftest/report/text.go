package report

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"vnic.dev/vnic/internal/job/selftest/expect"
	"vnic.dev/vnic/internal/job/selftest/ktap"
	"vnic.dev/vnic/internal/job/selftest/results"
)

func device(run *results.Run) string {
	s := run.Model + " on " + run.Device
	if run.Device == "vnic" && run.Queues == 1 { // QEMU's own NICs always have one queue
		s += ", 1 queue"
	}
	return s
}

func reason(e *expect.Entry) string {
	parts := []string{string(e.Class), e.Evidence, e.Text}
	return strings.Join(slices.DeleteFunc(parts, func(s string) bool { return s == "" }), ": ")
}

func notApplied(p *results.Program) string {
	return "not run: does not apply to this kernel's tests: " + strings.Join(p.Left, ", ")
}

func describe(j *expect.Judged) string {
	result := cmp.Or(string(j.Result), "no result")
	switch {
	case j.Verdict == expect.AsExpected && j.Result != ktap.Pass:
		return fmt.Sprintf("%s, as expected: %s", result, reason(j.Expected))
	case j.Verdict == expect.Unjudged || j.Verdict == expect.AsExpected:
		return result
	case j.Complaint() || j.Verdict == expect.Unproved || j.Verdict == expect.Missing:
		return fmt.Sprintf("%s: %s", j.Verdict, j.Note)
	case j.Note != "":
		return fmt.Sprintf("%s: %s, %s", j.Verdict, result, j.Note)
	}
	return fmt.Sprintf("%s: %s", j.Verdict, result)
}
