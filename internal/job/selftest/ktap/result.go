package ktap

// Result is how a case ended.
type Result string

// Results. XFAIL and TODO of a case that failed are XFail; XPASS, and TODO of one that passed, are Pass with the
// directive kept.
const (
	Pass    Result = "pass"
	Fail    Result = "fail"
	Skip    Result = "skip"
	XFail   Result = "xfail"   // it failed, and its author expects that
	Timeout Result = "timeout" // it took too long
	Error   Result = "error"   // it could not be run to its end
)

// Results lists all results, the one that is best first.
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

// ofStatus is what an exit status alone says.
func ofStatus(status int) Result {
	switch status {
	case exitPass, exitXPass:
		return Pass
	case exitXFail:
		return XFail
	case exitSkip:
		return Skip
	case exitTimeout:
		return Timeout
	}
	return Fail
}

// ofLine is what a result line says: whether it begins with "ok", and its directive. An unknown directive changes
// nothing (ktap.rst, "Test case result lines").
func ofLine(ok bool, directive string) Result {
	switch directive {
	case "SKIP":
		return Skip // whether it is "ok" or "not ok"
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
