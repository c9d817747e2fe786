package ktap

import "cmp"

// Result is how a case ended.
type Result string

// Results. A case with the directive XFAIL, or that failed with TODO, has the result XFail. A case that passed with
// XPASS or TODO has Pass, and keeps the directive.
const (
	Pass    Result = "pass"
	Fail    Result = "fail"
	Skip    Result = "skip"
	XFail   Result = "xfail"   // it failed, and its author expects that
	Timeout Result = "timeout" // it took too long
	Error   Result = "error"   // it could not be run to its end
)

// Results lists all results, the best first.
var Results = []Result{Pass, XFail, Skip, Fail, Timeout, Error}

// Bad reports whether a result is a failure, whatever the kind.
func (r Result) Bad() bool { return r == Fail || r == Timeout || r == Error }

// Exit statuses of kselftests (kselftest.h, KSFT_PASS and those below it; runner.sh, timeout_rc).
const (
	exitPass    = 0
	exitXFail   = 2
	exitXPass   = 3
	exitSkip    = 4
	exitTimeout = 124
)

var statuses = map[int]Result{exitPass: Pass, exitXPass: Pass, exitXFail: XFail, exitSkip: Skip, exitTimeout: Timeout}

// ofStatus returns the result of a program by its exit status.
func ofStatus(status int) Result { return cmp.Or(statuses[status], Fail) }

// ofLine returns the result of a case by its result line: ok if the line begins with "ok", and the directive. An
// unknown directive has no effect (ktap.rst, "Test case result lines").
func ofLine(ok bool, directive string) Result {
	switch directive {
	case "SKIP":
		return Skip // "ok" and "not ok" alike
	case "TIMEOUT":
		return Timeout
	case "ERROR":
		return Error
	case "XFAIL":
		return XFail // kselftest.h prints "ok", TAP's TODO and ksft.py after a failed cleanup "not ok"
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
