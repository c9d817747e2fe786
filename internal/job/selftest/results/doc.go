// Package results has the results of a run of the kernel's driver selftests: programs, their cases,
// the kernel's complaints meanwhile, and the host's counters of payload. Its types are also the
// JSON of `vnic selftest`: names of fields are API.
//
// A Recorder makes a Program from a program's output and the kernel's complaints, as they come.
//
// The package does not depend on expected results (package expect), nor on their presentation
// (package report). All text from the guest is clean (ktap.Clean).
package results
