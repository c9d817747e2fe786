// Package ktap parses the output of kernel selftests: the Kernel Test Anything Protocol, version 1 (Linux,
// Documentation/dev-tools/ktap.rst), as net/lib/py/ksft.py, kselftest/ktap_helpers.sh and kselftest.h write
// it.
//
// A Parser takes output in pieces, and emits events (Kind), such as the plan, the begin of a case, and the end
// of a case with the output about it. At the end the caller reports how the program ended; then the Parser lists
// planned cases without a result, and contradictions. A program that prints no KTAP is one case, Whole, whose result
// follows from how it ended.
//
// The output comes from a guest, which may print anything. The parser never fails, and its memory is bounded
// (MaxLine, MaxCases, MaxDiagnostics, MaxKept, MaxDepth). The output in events is valid UTF-8 without control
// characters. The results are as trustworthy as the guest.
package ktap
