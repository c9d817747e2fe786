package ktap

import "cmp"

// Result is how a case ended.
type Result string

// Results. A case that passed with XPASS or TODO has Pass, and keeps the directive.
const (
	Pass    Result = "pass"
	Fail    Result = "fail"
	Skip    Result = "skip"
	XFail   Result = "xfail"   // it failed as its author expects
	Timeout Result = "timeout" // it took too long
	Error   Result = "error"   // it did not run to its end, or reported an error; of Whole also a contradiction
)

// Results lists the results, the best first.
var Results = []Result{Pass, XFail, Skip, Fail, Timeout, Error}

// Bad reports whether a result is a failure.
func (r Result) Bad() bool { return r == Fail || r == Timeout || r == Error }

// Exit statuses of programs (kselftest.h, KSFT_PASS and those below it; runner.sh, timeout_rc). Others mean Fail.
const (
	exitPass    = 0
	exitXFail   = 2
	exitXPass   = 3
	exitSkip    = 4
	exitTimeout = 124
)

var statuses = map[int]Result{exitPass: Pass, exitXPass: Pass, exitXFail: XFail, exitSkip: Skip, exitTimeout: Timeout}

func ofStatus(status int) Result { return cmp.Or(statuses[status], Fail) }

// ofLine returns the result of a result line; ok: it begins with "ok". An unknown directive has no effect
// (ktap.rst, "Test case result lines").
func ofLine(ok bool, directive string) Result {
	switch directive {
	case "SKIP":
		return Skip
	case "TIMEOUT":
		return Timeout
	case "ERROR":
		return Error
	case "XFAIL":
		return XFail // kselftest.h prints it with "ok"; ksft.py, after a failed cleanup, with "not ok"
	case "TODO":
		if !ok {
			return XFail
		}
	}
	if ok {
		return Pass
	}
	return Fail
}
