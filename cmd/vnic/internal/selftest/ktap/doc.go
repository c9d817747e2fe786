// Package ktap reads what kernel selftests print: the Kernel Test Anything Protocol, version 1
// (Linux, Documentation/dev-tools/ktap.rst), as net/lib/py/ksft.py, kselftest/ktap_helpers.sh and
// kselftest.h write it.
//
// A Parser is fed bytes as they come and tells of events at once: the plan, a case that begins, one
// that ended with all that was printed about it. Whoever feeds it says at the end how the program
// ended; then cases that were announced and had no result are told of, too, and what does not fit
// together, as a plan of more cases than there were. A program that prints no KTAP is one case,
// Whole, of which the exit status is the result.
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
