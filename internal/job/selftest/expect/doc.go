// Package expect says which results of the kernel's driver selftests are expected of a device, and
// why, and compares a run with that.
//
// There is a file for each series of kernels (suites/7.2.yaml: which cases its tests have, and what
// vnic's patches of them are called) and one for each device model and series (models/gve-7.2.yaml:
// which result each case has). Both are in the program. A result that is not pass has a class and
// its evidence: a driver's file and line, a patch of the tests, a change of the setup with which the
// case passes, or a report in docs/found.md. What has none of these is ours, and is not written
// down: it makes a run fail until it is mended. "Flaky" is no class.
//
// A kernel, program or column without expectations is reported without judgement.
package expect
