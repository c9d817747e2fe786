// Package ktap reads what kernel selftests print: the Kernel Test Anything Protocol, version 1
// (Linux, Documentation/dev-tools/ktap.rst), as net/lib/py/ksft.py, kselftest/ktap_helpers.sh and
// kselftest.h write it.
//
// A Parser takes bytes as they come and emits events at once: the plan, a case that begins, a case
// that ended with all that was printed about it. The caller says at the end how the program ended;
// then the Parser lists planned cases without a result, and contradictions, as a plan of more cases
// than there were. A program that prints no KTAP is one case, Whole, whose result is the exit
// status.
//
// What is parsed comes from a guest, which may print anything. Nothing of it makes the parser fail,
// and it keeps no more than its bounds (MaxLine, MaxCases, MaxDiagnostics, MaxKept, MaxDepth): some
// 12 MiB for a program. Text in events is valid UTF-8 without control characters: terminals and XML
// take it as it is. A program can print the result line of another one's case: results are no safer
// than the guest.
//
// What the package does not know: the clock, kernel messages (package splat), what was expected
// (package expect).
package ktap
