// Package ktap parses the output of kernel selftests: the Kernel Test Anything Protocol, version 1
// (Linux, Documentation/dev-tools/ktap.rst), as net/lib/py/ksft.py, kselftest/ktap_helpers.sh and
// kselftest.h write it.
//
// A Parser takes output piece by piece, and emits events as soon as their lines have come: the plan, the
// begin of a case, the end of a case with all output about it. At the end the caller reports how the program ended;
// then the Parser lists planned cases without a result, and contradictions, for example a plan of
// more cases than ran. A program that prints no KTAP is one case, Whole, whose result is the exit
// status.
//
// The output comes from a guest, which may print anything. The parser never fails, and keeps no
// more than its bounds (MaxLine, MaxCases, MaxDiagnostics, MaxKept, MaxDepth), some 12 MiB for a
// program. Text in events is valid UTF-8 without control characters, safe for terminals and XML. A
// test can print the result line of another test's case, so the results are as trustworthy as the
// guest.
//
// The package does not use: the clock, kernel messages (package splat), expectations (package
// expect).
package ktap
